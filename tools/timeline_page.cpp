#include "timeline_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "html.h"
#include "numbers.h"
#include "trace_hang.h"
#include "trace_timeline.h"

namespace fsccl::trace {
namespace {

using perf::MapChart;
using perf::Table;

constexpr size_t kMostTimelineAreas = 6000;  // on the picture; the longest if there are more
constexpr size_t kWaitColor = perf::kPageColors - 1;

double ms(int64_t ns) { return static_cast<double>(ns) / 1e6; }

// Returns the bytes of an element, whose type the recording names.
uint64_t bytes_of(const std::string& dtype) {
  if (dtype.ends_with("64")) return 8;
  if (dtype.ends_with("32")) return 4;
  if (dtype.ends_with("16")) return 2;
  return 1;
}

// Returns the size of an operation as fsccl-perf gives it: that of a rank's larger buffer, which
// has a block of each rank in these operations.
uint64_t bytes_of(const Span& span) {
  const Event& call = *span.call;
  const uint64_t block = call.count * bytes_of(call.dtype);
  for (const char* name : {"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"})
    if (call.operation == name) return block * static_cast<uint64_t>(std::max(span.ranks, 1));
  return block;
}

struct Operations {  // operations of one kind and size, on all ranks
  std::vector<int64_t> times_ns;
  uint64_t incomplete = 0;
  double waited_ms = 0;
};

class TimelinePage {
 public:
  TimelinePage(const std::vector<Recording>& job, double last_ms) : job_(job) {
    for (const Recording& recording : job) {
      std::vector<Span> spans = spans_of(recording);
      spans_.insert(spans_.end(), std::make_move_iterator(spans.begin()),
                    std::make_move_iterator(spans.end()));
    }
    for (const Span& span : spans_) {
      begin_ns_ = std::min(begin_ns_, span.begin_ns);
      end_ns_ = std::max(end_ns_, span.end_ns);
    }
    if (spans_.empty()) begin_ns_ = end_ns_ = 0;
    if (last_ms > 0)
      begin_ns_ =
          std::max(begin_ns_, end_ns_ - static_cast<int64_t>(std::min(last_ms * 1e6, 1e18)));
    std::erase_if(spans_, [&](const Span& span) { return span.end_ns < begin_ns_; });
    for (const Span& span : spans_)
      colors_.try_emplace(span.call->operation, colors_.size() % kWaitColor);
  }

  std::string write() const {
    const Verdict verdict = find_cause(job_);
    uint64_t overwritten = 0;
    for (const Recording& recording : job_) overwritten += recording.overwritten;
    const std::string words = fmt::format(
        "{} of {} ranks, {:.3f} ms, {} operations. {}{}", job_.size(),
        job_.empty() ? 0 : job_.front().ranks, ms(end_ns_ - begin_ns_), spans_.size(), verdict.text,
        overwritten
            ? fmt::format(" {} older events were overwritten: FSCCL_TRACE_EVENTS keeps more.",
                          overwritten)
            : "");
    Table ranks{{"what each rank did last"}, {}};
    for (const std::string& line : verdict.ranks) ranks.rows.push_back({line});
    return perf::make_page("Timeline of a job", words, {draw(picture())},
                           {draw(operations()), draw(waits()), draw(ranks)});
  }

 private:
  double x_of(int64_t at_ns) const { return ms(std::max(at_ns, begin_ns_) - begin_ns_); }

  MapChart picture() const {
    MapChart chart;
    chart.x_label = "ms";
    chart.scaled = false;
    chart.x_end = ms(end_ns_ - begin_ns_);
    std::map<int, size_t> band_of;
    for (const Recording& recording : job_) {
      band_of[recording.rank] = chart.bands.size();
      chart.bands.push_back({fmt::format("rank {} on {}", recording.rank, recording.host), 1});
    }
    std::vector<const Span*> shown;
    for (const Span& span : spans_) shown.push_back(&span);
    if (shown.size() > kMostTimelineAreas) {
      const auto longer = [](const Span* a, const Span* b) {
        return a->end_ns - a->begin_ns > b->end_ns - b->begin_ns;
      };
      std::nth_element(shown.begin(), shown.begin() + kMostTimelineAreas, shown.end(), longer);
      shown.resize(kMostTimelineAreas);
    }
    chart.title = shown.size() < spans_.size()
                      ? fmt::format("Operations of each rank: the longest {} of {}", shown.size(),
                                    spans_.size())
                      : "Operations of each rank";
    for (const Span* span : shown) {
      const double took = ms(span->end_ns - span->begin_ns);
      chart.areas.push_back(
          {band_of[span->rank], x_of(span->begin_ns), x_of(span->end_ns), 0, 1,
           colors_.at(span->call->operation), false, span->call->operation,
           fmt::format("{} of '{}': {:.3f} ms{}", describe(*span->call), span->communicator, took,
                       span->complete ? "" : ", not complete")});
      for (const Span::Wait& wait : span->waits)
        chart.areas.push_back({band_of[span->rank], x_of(wait.begin_ns), x_of(wait.end_ns), 0, 0.4,
                               kWaitColor, false, fmt::format("rank {}", wait.blocked->peer),
                               fmt::format("{}: {:.3f} ms", wait_name(*wait.blocked),
                                           ms(wait.end_ns - wait.begin_ns))});
    }
    if (add_overwritten(band_of, &chart))
      chart.legend.push_back({"older events were overwritten", kWaitColor, true});
    for (const auto& [name, color] : colors_) chart.legend.push_back({name, color, false});
    chart.legend.push_back({"asleep, waiting for the rank that is named", kWaitColor, false});
    return chart;
  }

  // Marks the time before the first known event of a rank, if the rank had older events: the rank
  // was not idle then. Returns true if there was such a time.
  bool add_overwritten(const std::map<int, size_t>& band_of, MapChart* chart) const {
    bool any = false;
    for (const Recording& recording : job_) {
      if (!recording.overwritten || recording.events.empty()) continue;
      const int64_t first_ns = recording.events.front().at_ns;
      if (first_ns <= begin_ns_) continue;
      any = true;
      chart->areas.push_back(
          {band_of.at(recording.rank), 0, x_of(first_ns), 0, 1, kWaitColor, true,
           "older events were overwritten",
           fmt::format("{} older events of rank {} were overwritten; FSCCL_TRACE_EVENTS keeps more",
                       recording.overwritten, recording.rank)});
    }
    return any;
  }

  Table operations() const {
    std::map<std::pair<std::string, uint64_t>, Operations> by_name;  // and size
    for (const Span& span : spans_) {
      const Event& call = *span.call;
      const std::string name =
          call.operation == "barrier"
              ? call.operation
              : fmt::format("{} of {} {}", call.operation, call.count, call.dtype);
      Operations& all = by_name[{name, bytes_of(span)}];
      if (span.complete)
        all.times_ns.push_back(span.end_ns - span.begin_ns);
      else
        all.incomplete++;
      for (const Span::Wait& wait : span.waits) all.waited_ms += ms(wait.end_ns - wait.begin_ns);
    }
    Table table{{"operation", "calls", "bytes", "median us", "longest us", "GB/s at the median",
                 "asleep ms", "not complete"},
                {}};
    for (auto& [which, all] : by_name) {
      const auto& [name, bytes] = which;
      std::sort(all.times_ns.begin(), all.times_ns.end());
      const double median =
          all.times_ns.empty() ? 0 : static_cast<double>(all.times_ns[all.times_ns.size() / 2]);
      const double longest = all.times_ns.empty() ? 0 : static_cast<double>(all.times_ns.back());
      table.rows.push_back(
          {name, fmt::format("{}", all.times_ns.size() + all.incomplete), perf::format_bytes(bytes),
           fmt::format("{:.1f}", median / 1e3), fmt::format("{:.1f}", longest / 1e3),
           median > 0 ? fmt::format("{:.3f}", static_cast<double>(bytes) / median) : "-",
           fmt::format("{:.3f}", all.waited_ms), fmt::format("{}", all.incomplete)});
    }
    return table;
  }

  Table waits() const {
    std::map<std::pair<int, int>, std::pair<uint64_t, double>> by_pair;  // times, ms
    for (const Span& span : spans_)
      for (const Span::Wait& wait : span.waits) {
        auto& [times, waited_ms] = by_pair[{span.rank, wait.blocked->peer}];
        times++, waited_ms += ms(wait.end_ns - wait.begin_ns);
      }
    std::vector<std::pair<std::pair<int, int>, std::pair<uint64_t, double>>> sorted(by_pair.begin(),
                                                                                    by_pair.end());
    std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
      return a.second.second > b.second.second;
    });
    Table table{{"rank", "waited for rank", "times", "ms", "of the time"}, {}};
    for (const auto& [pair, sum] : sorted)
      table.rows.push_back(
          {fmt::format("{}", pair.first), fmt::format("{}", pair.second),
           fmt::format("{}", sum.first), fmt::format("{:.3f}", sum.second),
           fmt::format("{:.1f} %", 100.0 * sum.second / std::max(ms(end_ns_ - begin_ns_), 1e-6))});
    return table;
  }

  const std::vector<Recording>& job_;
  std::vector<Span> spans_;
  std::map<std::string, size_t> colors_;  // by operation
  int64_t begin_ns_ = INT64_MAX, end_ns_ = 0;
};

}  // namespace

std::string timeline_page(const std::vector<Recording>& job, double last_ms) {
  return TimelinePage(job, last_ms).write();
}

}  // namespace fsccl::trace
