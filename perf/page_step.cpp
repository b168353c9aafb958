#include "page_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "numbers.h"

namespace fsccl::perf {
namespace {

std::string phases_chart(const StepReport& report) {
  BarChart chart{"Time per phase and rank", "ms", {}, {}};
  for (size_t rank = 0; rank < report.rank_phases_us.size(); rank++) {
    chart.rows.push_back({fmt::format("rank {}", rank), {}});
    for (const auto& [name, time] : report.rank_phases_us[rank]) {
      if (rank == 0) chart.parts.push_back(name);
      chart.rows.back().values.push_back(time / 1e3);
    }
  }
  return draw(chart);
}

std::string memory_chart(const StepReport& report) {
  Line live{"slots, live", {}, 0, false, false, true},
      bound{"slots that must be there", {}, 1, false, true, true};
  Line most{"live bound", {}, 2, true, false, true}, reserved{"reserved", {}, 7, true, false, true};
  uint64_t peak = 0;
  for (const MemoryPoint& point : report.memory) peak = std::max(peak, point.bound_bytes);
  for (const MemoryPoint& point : report.memory) {
    const double at = point.time_us / 1e3;
    live.points.emplace_back(at, static_cast<double>(point.live_bytes));
    bound.points.emplace_back(at, static_cast<double>(point.bound_bytes));
    most.points.emplace_back(at, static_cast<double>(peak));
    reserved.points.emplace_back(at, static_cast<double>(report.reserved_bytes));
  }
  return draw(LineChart{"Memory of rank 0 over a step",
                        "ms of the step",
                        "bytes",
                        Axis::kLinear,
                        Axis::kBytes,
                        {std::move(reserved), std::move(most), std::move(bound), std::move(live)}});
}

// Draws the bandwidth of units by the size of their slot, beside the limit that the machine sets by
// the bytes that must be read and written.
std::string bandwidth_chart(const StepReport& report, const std::vector<MachineLimit>& limits) {
  std::map<double, std::pair<double, double>> best;  // slot bytes: GB/s of gathers, of reductions
  const auto rate = [](uint64_t bytes, double time_us, double times) {
    return time_us > 0 ? static_cast<double>(bytes) * times / time_us * 1e-3 : 0;
  };
  for (const UnitReport& unit : report.unit_list) {
    auto& [gather, reduce] = best[static_cast<double>(unit.slot_bytes)];
    gather = std::max(gather, rate(unit.slot_bytes, unit.unshard_us, unit.gathers));
    reduce = std::max(reduce, rate(unit.gradient_bytes, unit.reduce_us, 1));
  }
  LineChart chart{
      "Bandwidth by size of unit", "bytes of a slot", "GB/s", Axis::kLogBytes, Axis::kLog, {}};
  Line gathers{"unshard: slot bytes / time", {}, 0, false, false, false},
      reductions{"reduce: gradient bytes / time", {}, 1, false, false, false};
  Line most_gathers{"limit of unshard", {}, 0, true, false, false},
      most_reductions{"limit of reduce", {}, 1, true, false, false};
  for (const auto& [bytes, rates] : best) {
    gathers.points.emplace_back(bytes, rates.first);
    reductions.points.emplace_back(bytes, rates.second);
  }
  // A limit is measured, too. If a unit was faster than it, then the machine can do what the unit
  // did.
  for (const MachineLimit& limit : limits) {
    const double bytes = static_cast<double>(limit.bytes);
    const auto reached = best.find(bytes);
    const auto [gather, reduce] = reached == best.end() ? std::pair(0.0, 0.0) : reached->second;
    most_gathers.points.emplace_back(
        bytes, std::max(gather, limit_rate(limit, report.gather_reads, report.gather_writes)));
    most_reductions.points.emplace_back(
        bytes, std::max(reduce, limit_rate(limit, report.reduce_reads, report.reduce_writes)));
  }
  chart.lines = {std::move(gathers), std::move(reductions), std::move(most_gathers),
                 std::move(most_reductions)};
  return draw(chart);
}

Table summary(const StepReport& report) {
  Table table{{"figure", "value", "against"}, {}};
  table.rows.push_back({"step", fmt::format("{:.3f} ms", report.total_us / 1e3), ""});
  table.rows.push_back({"bytes moved, all ranks", format_bytes(report.bytes_moved),
                        "minimum " + format_bytes(report.bytes_minimum)});
  table.rows.push_back({"peak memory, all ranks", format_bytes(report.peak_bytes),
                        "live bound " + format_bytes(report.live_bound_bytes)});
  table.rows.push_back({"plan, rank 0", format_bytes(report.planned_bytes),
                        fmt::format("{} hits, {} misses, {} growths", report.plan_hits,
                                    report.plan_misses, report.growths)});
  table.rows.push_back(
      {"wrong elements", report.dry_run ? "not checked" : fmt::format("{}", report.wrong), ""});
  return table;
}

}  // namespace

std::string step_page(const StepReport& report, const std::vector<MachineLimit>& limits) {
  Table units{{"unit", "parameters", "slot", "gradients", "unshard us", "reduce us"}, {}};
  for (const UnitReport& unit : report.unit_list)
    units.rows.push_back({unit.name, fmt::format("{}", unit.parameters),
                          format_bytes(unit.slot_bytes), format_bytes(unit.gradient_bytes),
                          fmt::format("{:.1f}", unit.unshard_us),
                          fmt::format("{:.1f}", unit.reduce_us)});
  const std::string subtitle = fmt::format(
      "{}, {} units, {} parameters, {} ranks; wire {}, layout {}, keep {}, gradients {}, sharing "
      "{}, prefetch {}, plan {}. {}",
      report.model, report.units, report.parameters, report.ranks, report.wire, report.layout,
      report.keep, report.gradients, report.sharing, report.prefetch, report.plan,
      report.dry_run ? "Dry run: no memory is reserved or touched, nothing is moved; times are "
                       "those of the bookkeeping."
                     : "Phases are those of the median step. A limit is the rate at which all "
                       "ranks together copy and read as many bytes "
                       "as cannot be avoided, each in memory of its own of the slot's size, and at "
                       "least the rate that a unit reached.");
  std::vector<std::string> charts = {phases_chart(report), memory_chart(report)};
  if (!report.dry_run) charts.push_back(bandwidth_chart(report, limits));
  charts.push_back(draw(summary(report)));
  std::erase(charts, "");
  return make_page("fsccl-perf step: " + report.model, subtitle, charts, {draw(units)});
}

}  // namespace fsccl::perf
