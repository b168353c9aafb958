#include "memory_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>

#include "html.h"
#include "memory_timeline.h"
#include "numbers.h"

namespace fsccl::trace {
namespace {

using perf::format_bytes;
using perf::Line;
using perf::LineChart;
using perf::MapChart;
using perf::Table;

constexpr size_t kMostAreas = 4000;              // on the map; the largest if there are more
constexpr size_t kMostPoints = 1200;             // points of a line
constexpr size_t kMostRows = 2000;               // rows of a table
constexpr size_t kGrey = perf::kPageColors - 1;  // color of memory that belongs to no unit

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<uint64_t>(std::max(bytes, 0.0)));
}
std::string ratio_text(double value, double bound) {
  return bound > 0 ? fmt::format("{:.3f} x", value / bound) : "-";
}

// The parts of the name of an owner, such as "unit layers.3, parameters, stream 0x1".
struct OwnerName {
  std::string unit, rest;
};
OwnerName split_owner(const std::string& owner) {
  constexpr std::string_view kUnit = "unit ";
  const size_t comma = owner.rfind(", stream 0x") == std::string::npos
                           ? owner.rfind(", ")
                           : owner.rfind(", ", owner.rfind(", stream 0x") - 1);
  if (!owner.starts_with(kUnit) || comma == std::string::npos || comma < kUnit.size())
    return {"", owner};
  return {owner.substr(kUnit.size(), comma - kUnit.size()), owner.substr(comma + 2)};
}
std::string owner_of(const MemoryUse& use) {
  return (use.unit.empty() ? "" : fmt::format("unit {}, ", use.unit)) + use.kind +
         (use.stream ? fmt::format(", stream {:#x}", use.stream) : "");
}

// Units take colours in turn, so that neighbours in the model differ.
class Colors {
 public:
  explicit Colors(const MemorySnapshot& snapshot) {
    for (const std::string& owner : snapshot.owners) {
      const OwnerName name = split_owner(owner);
      if (!name.unit.empty()) of_unit_.try_emplace(name.unit, of_unit_.size() % kGrey);
    }
  }
  size_t of(const std::string& unit) const {
    const auto found = of_unit_.find(unit);
    return found == of_unit_.end() ? kGrey : found->second;
  }

 private:
  std::map<std::string, size_t> of_unit_;
};

class Page {
 public:
  Page(const MemorySnapshot& snapshot, const PageOptions& options)
      : snapshot_(snapshot),
        options_(options),
        timeline_(make_timeline(snapshot)),
        colors_(snapshot) {
    for (size_t i = 0; i < snapshot.parts.size(); i++) {
      const MemoryPart& part = snapshot.parts[i];
      mapped_ += static_cast<double>(part.bytes);
      if (i == kBlocksPart) continue;
      planned_ += static_cast<double>(part.planned_bytes),
          live_bound_ += static_cast<double>(part.live_bound_bytes);
      clique_bound_ += static_cast<double>(part.clique_bound_bytes);
    }
  }

  std::string write() const {
    const View view = make_view();
    const std::string title = fmt::format("Memory of pool \"{}\", rank {} of {}", snapshot_.pool,
                                          snapshot_.rank, snapshot_.ranks);
    const std::vector<std::string> tables = {draw(parts_table()), draw(owners_table()),
                                             refused_table()};
    // Without events there is nothing to draw over time; the summary says how to keep them.
    if (snapshot_.events.empty()) {
      std::vector<std::string> charts;
      if (!view.shown.empty()) charts.push_back(draw(map(view)));
      return perf::make_page(title, summary(), charts, tables);
    }
    return perf::make_page(
        title, summary(), {draw(map(view)), draw(slots_chart()), draw(zoomed_chart(view))}, tables);
  }

 private:
  // The tenancies that the map shows, the moment and the event from which on it shows them, and
  // words about the choice.
  struct View {
    uint64_t begin_us = 0;
    size_t begin_event = 0;
    std::vector<const Tenancy*> shown;
    std::string words;
  };
  // Returns the summary in words, for readers without the charts.
  std::string summary() const {
    std::string text = fmt::format(
        "The pool has {} of memory, {} the {} that were live at the peak. This rank reserves {} of "
        "it. ",
        bytes_text(mapped_), ratio_text(mapped_, static_cast<double>(snapshot_.live_peak_bytes)),
        format_bytes(snapshot_.live_peak_bytes), format_bytes(snapshot_.reserved_bytes));
    if (planned_ > 0)
      text += fmt::format(
          "The plan places a step in {}: {} the live bound of {} (the most bytes of shared slots "
          "held "
          "at once, and the same of own slots), {} the clique bound of {} (the slots that must not "
          "overlap). {} of {} slots came from the plan. ",
          bytes_text(planned_), ratio_text(planned_, live_bound_), bytes_text(live_bound_),
          ratio_text(planned_, clique_bound_), bytes_text(clique_bound_), snapshot_.plan_hits,
          snapshot_.plan_hits + snapshot_.plan_misses);
    else
      text += "There is no plan yet: the order of a step is not known. ";
    text += fmt::format("Memory was asked of the system {} times in {} steps. ", snapshot_.growths,
                        snapshot_.steps);
    if (snapshot_.ranks > 1 && snapshot_.shared_host != snapshot_.rank)
      text += fmt::format("Shared slots are memory of rank {} and not in what this rank reserves. ",
                          snapshot_.shared_host);
    if (snapshot_.dry_run) text += "The pool is a rehearsal (dry_run) and has no memory. ";
    if (snapshot_.events.empty())
      text +=
          "There are no charts over time, because the pool kept no events: set FSCCL_POOL_HISTORY "
          "before the pool is made." +
          std::string(timeline_.tenancies.empty() ? " Nothing is in the pool now." : "");
    else
      text +=
          fmt::format("{} events are known{}.", snapshot_.events.size(),
                      snapshot_.events_lost
                          ? fmt::format("; {} before them are not, FSCCL_POOL_HISTORY is smaller",
                                        snapshot_.events_lost)
                          : "");
    return text;
  }

  View make_view() const {
    View view{timeline_.begin_us, 0, {}, "all events"};
    const std::vector<uint64_t>& steps = snapshot_.step_times_us;
    // The last step ends with the last boundary, unless events came after it.
    if (options_.steps && steps.size() > options_.steps) {
      view.begin_us = steps[steps.size() - 1 - options_.steps];
      view.words = fmt::format("the last {} of {} known steps", options_.steps, steps.size());
      const auto first = std::partition_point(
          snapshot_.events.begin(), snapshot_.events.end(),
          [&](const MemoryEvent& event) { return event.time_us < view.begin_us; });
      view.begin_event = static_cast<size_t>(first - snapshot_.events.begin());
    }
    for (const Tenancy& tenancy : timeline_.tenancies)
      if (tenancy.open_end || tenancy.end_us > view.begin_us) view.shown.push_back(&tenancy);
    if (view.shown.size() > kMostAreas) {
      const auto area = [](const Tenancy* t) {
        return static_cast<double>(t->bytes) * (static_cast<double>(t->end_us - t->begin_us) + 1);
      };
      std::nth_element(view.shown.begin(), view.shown.begin() + kMostAreas, view.shown.end(),
                       [&](const Tenancy* a, const Tenancy* b) { return area(a) > area(b); });
      view.words += fmt::format("; of {} slots and blocks the {} with the most bytes x time",
                                view.shown.size(), kMostAreas);
      view.shown.resize(kMostAreas);
    }
    return view;
  }

  MapChart map(const View& view) const {
    MapChart chart;
    chart.title = snapshot_.events.empty()
                      ? "Slots and blocks now"
                      : fmt::format("Slots and blocks: offset over time ({})", view.words);
    chart.x_label = options_.by_event ? "events" : "ms";
    const double origin = options_.by_event ? static_cast<double>(view.begin_event)
                                            : static_cast<double>(view.begin_us);
    const auto x_of = [&](uint64_t time_us, size_t event) {
      const double at =
          options_.by_event ? static_cast<double>(event) : static_cast<double>(time_us);
      return std::max(at - origin, 0.0) / (options_.by_event ? 1 : 1e3);
    };
    chart.x_end = x_of(timeline_.end_us, snapshot_.events.size());
    std::vector<size_t> band_of(snapshot_.parts.size() + 1, SIZE_MAX);
    for (size_t i = 0; i < snapshot_.parts.size(); i++)
      if (snapshot_.parts[i].bytes) band_of[i] = add_band(snapshot_.parts[i], &chart);
    for (const Tenancy* tenancy : view.shown) {
      const size_t part = part_of(snapshot_, tenancy->address);
      if (band_of[part] != SIZE_MAX)
        chart.areas.push_back(area_of(*tenancy, band_of[part], snapshot_.parts[part],
                                      x_of(tenancy->begin_us, tenancy->begin_event),
                                      x_of(tenancy->end_us, tenancy->end_event)));
    }
    if (!options_.by_event)
      for (const uint64_t time : snapshot_.step_times_us)
        if (time > view.begin_us && time < timeline_.end_us) chart.marks.push_back(x_of(time, 0));
    if (chart.marks.size() > 200) chart.marks.clear();
    chart.legend = {{"parameters and shards, a colour for each unit in turn", 0, false},
                    {"gradients of that unit", 0, true},
                    {"blocks of no unit", kGrey, false}};
    return chart;
  }

  static size_t add_band(const MemoryPart& part, MapChart* chart) {
    std::string name = fmt::format("{}: {} reserved", part.name, format_bytes(part.bytes));
    if (part.reserved_bytes == 0) name += " by another rank";
    if (part.planned_bytes)
      name += fmt::format(", {} planned, live bound {}, clique bound {}",
                          format_bytes(part.planned_bytes), format_bytes(part.live_bound_bytes),
                          format_bytes(part.clique_bound_bytes));
    chart->bands.push_back({std::move(name), static_cast<double>(part.bytes)});
    return chart->bands.size() - 1;
  }

  MapChart::Area area_of(const Tenancy& tenancy, size_t band, const MemoryPart& part, double begin,
                         double end) const {
    const std::string& owner = snapshot_.owners[tenancy.owner];
    const OwnerName name = split_owner(owner);
    const uint64_t offset = tenancy.address - part.address;
    const auto ms = [&](uint64_t time_us) {
      return static_cast<double>(time_us - timeline_.begin_us) / 1e3;
    };
    MapChart::Area area;
    area.band = band;
    area.begin = begin, area.end = end;
    area.low = static_cast<double>(offset),
    area.high = area.low + static_cast<double>(tenancy.bytes);
    area.color = colors_.of(name.unit);
    area.pale = name.rest.starts_with("gradients");
    area.label = name.unit.empty() ? name.rest : name.unit;
    area.words = fmt::format(
        "{}: {} ({} bytes) at offset {} of {}; from {} to {}", owner.empty() ? "unknown" : owner,
        format_bytes(tenancy.bytes), tenancy.bytes, offset, part.name,
        tenancy.open_begin ? "before the first event"
                           : fmt::format("{:.3f} ms", ms(tenancy.begin_us)),
        tenancy.open_end ? "the end" : fmt::format("{:.3f} ms", ms(tenancy.end_us)));
    return area;
  }

  // Adds the points of a value over time. If there are more moments than can be seen, then each
  // stretch of moments has only its least and its largest value.
  template <class Value>
  void add_points(Line* line, Value value, size_t first, uint64_t begin_us) const {
    const std::vector<Moment>& moments = timeline_.moments;
    const auto x = [&](size_t i) {  // the first moment may be before the beginning
      return static_cast<double>(std::max(moments[i].time_us, begin_us) - begin_us) / 1e3;
    };
    const size_t stretch = std::max<size_t>(1, (moments.size() - first) * 2 / kMostPoints);
    for (size_t i = first; i < moments.size(); i += stretch) {
      double least = value(moments[i]), most = least;
      for (size_t j = i; j < std::min(i + stretch, moments.size()); j++)
        least = std::min(least, value(moments[j])), most = std::max(most, value(moments[j]));
      line->points.emplace_back(x(i), least);
      if (most != least) line->points.emplace_back(x(i), most);
    }
    line->points.emplace_back(x(moments.size() - 1), value(moments.back()));
  }
  Line level(const std::string& name, double value, size_t color) const {
    const double end = static_cast<double>(timeline_.end_us - timeline_.begin_us) / 1e3;
    Line line{fmt::format("{} {}", name, bytes_text(value)), {}, color, true, false, true};
    if (value > 0) line.points = {{0, value}, {end, value}};
    return line;
  }

  LineChart slots_chart() const {
    Line live{"live", {}, 0, false, false, true},
        reserved{"reserved", {}, kGrey, false, false, true};
    const uint64_t begin_us = timeline_.begin_us;
    add_points(&live, [](const Moment& moment) { return moment.slots; }, 0, begin_us);
    add_points(&reserved, [](const Moment& moment) { return moment.reserved_slots; }, 0, begin_us);
    return LineChart{
        "Slots over the whole history, against the bounds of the plan",
        "ms",
        "bytes",
        Axis::kLinear,
        Axis::kBytes,
        {reserved, level("planned", planned_, 3), level("clique bound", clique_bound_, 1),
         level("live bound", live_bound_, 2), live}};
  }
  // Draws the sum of what the map shows.
  LineChart zoomed_chart(const View& view) const {
    Line live{"live slots and blocks", {}, 0, false, false, true},
        blocks{"live blocks", {}, 4, false, false, true},
        reserved{"reserved", {}, kGrey, false, false, true};
    const auto add = [&](Line* line, auto value) {
      add_points(line, value, view.begin_event, view.begin_us);
    };
    add(&live, [](const Moment& moment) { return moment.slots + moment.blocks; });
    add(&blocks, [](const Moment& moment) { return moment.blocks; });
    add(&reserved,
        [](const Moment& moment) { return moment.reserved_slots + moment.reserved_blocks; });
    return LineChart{fmt::format("All memory ({})", view.words),
                     "ms",
                     "bytes",
                     Axis::kLinear,
                     Axis::kBytes,
                     {reserved, live, blocks}};
  }

  Table parts_table() const {
    Table table{
        {"part", "reserved", "planned", "live bound", "clique bound", "planned / live bound"}, {}};
    for (const MemoryPart& part : snapshot_.parts)
      table.rows.push_back({part.name, format_bytes(part.bytes), format_bytes(part.planned_bytes),
                            format_bytes(part.live_bound_bytes),
                            format_bytes(part.clique_bound_bytes),
                            ratio_text(static_cast<double>(part.planned_bytes),
                                       static_cast<double>(part.live_bound_bytes))});
    return table;
  }

  Table owners_table() const {
    std::map<std::string, double> at_peak;
    for (size_t i = 0; i < snapshot_.owners.size(); i++)
      at_peak[snapshot_.owners[i]] += timeline_.owned_at_peak[i];
    std::vector<MemoryUse> uses = snapshot_.uses;
    std::stable_sort(uses.begin(), uses.end(), [](const MemoryUse& a, const MemoryUse& b) {
      return a.peak_bytes > b.peak_bytes;
    });
    Table table{{"kind", "unit", "stream", "live now", "at the peak", "own peak", "taken",
                 "given back", "bytes in all"},
                {}};
    for (const MemoryUse& use : uses) {
      if (table.rows.size() == kMostRows) break;
      const auto found = at_peak.find(owner_of(use));
      table.rows.push_back(
          {use.kind, use.unit.empty() ? "-" : use.unit,
           use.stream ? fmt::format("{:#x}", use.stream) : "-", format_bytes(use.live_bytes),
           snapshot_.events.empty() ? "-" : bytes_text(found == at_peak.end() ? 0 : found->second),
           format_bytes(use.peak_bytes), fmt::format("{}", use.allocations),
           fmt::format("{}", use.frees), format_bytes(use.allocated_bytes)});
    }
    return table;
  }

  std::string refused_table() const {
    Table table{{"refused: who", "bytes", "at ms"}, {}};
    for (const MemoryEvent& event : snapshot_.events)
      if (event.action == MemoryEvent::Action::kRefused && table.rows.size() < kMostRows)
        table.rows.push_back(
            {snapshot_.owners[event.owner], format_bytes(event.bytes),
             fmt::format("{:.3f}", static_cast<double>(event.time_us - timeline_.begin_us) / 1e3)});
    return table.rows.empty() ? "" : draw(table);
  }

  using Axis = perf::Axis;
  const MemorySnapshot& snapshot_;
  const PageOptions options_;
  const Timeline timeline_;
  const Colors colors_;
  double mapped_ = 0;                                       // bytes of all parts
  double planned_ = 0, live_bound_ = 0, clique_bound_ = 0;  // bytes of all slots
};

}  // namespace

std::string memory_page(const MemorySnapshot& snapshot, const PageOptions& options) {
  return Page(snapshot, options).write();
}

}  // namespace fsccl::trace
