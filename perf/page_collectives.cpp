#include "page_collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "collective_table.h"

namespace fsccl::perf {
namespace {

std::string form_of(const CollectiveRow& row) {
  return fmt::format("{} {}{}{}", row.memory, row.dtype, row.op == "none" ? "" : " " + row.op,
                     row.in_place ? ", in place" : "");
}

constexpr size_t kLimitColors = 2, kOwnColors = kPageColors - kLimitColors;

// Adds the limits of the machine for private outputs, and for an output that the ranks share.
void add_limits(const CollectiveKind& kind, const std::vector<const CollectiveRow*>& rows,
                const std::vector<MachineLimit>& limits, LineChart* chart) {
  const auto add = [&](const char* name, size_t color, Traffic traffic) {
    Line line{name, {}, color, true, false, false};
    for (const MachineLimit& limit : limits)
      line.points.emplace_back(static_cast<double>(limit.bytes),
                               limit_rate(limit, traffic.reads, traffic.writes));
    chart->lines.push_back(std::move(line));
  };
  const auto is_shared = [](const CollectiveRow* row) { return row->memory == "shared"; };
  const Traffic own = kind.traffic(rows.front()->ranks), shared{1, 1};
  const bool any_shared = std::any_of(rows.begin(), rows.end(), is_shared),
             same = own.reads == 1 && own.writes == 1;
  if (own.writes > 0 && !std::all_of(rows.begin(), rows.end(), is_shared))
    add("limit of this machine", kPageColors - 1, own);
  if (any_shared && !same) add("limit, shared", kPageColors - 2, shared);
}

// The first forms of a collective have their own colours. Lines of further forms are dashed and use
// the same colours again.
std::string chart_of(const std::string& collective, const std::vector<const CollectiveRow*>& rows,
                     const std::vector<MachineLimit>& limits, bool bandwidth) {
  LineChart chart{bandwidth ? collective + ": algbw by size" : collective + ": time by size",
                  "bytes",
                  bandwidth ? "GB/s" : "us (p50)",
                  Axis::kLogBytes,
                  Axis::kLog,
                  {}};
  std::map<std::string, size_t> index;
  for (const CollectiveRow* row : rows) {
    const auto [place, is_new] = index.try_emplace(form_of(*row), chart.lines.size());
    if (is_new)
      chart.lines.push_back({place->first,
                             {},
                             chart.lines.size() % kOwnColors,
                             chart.lines.size() >= kOwnColors,
                             false,
                             false});
    chart.lines[place->second].points.emplace_back(static_cast<double>(row->bytes),
                                                   bandwidth ? row->algbw : row->p50_us);
  }
  if (bandwidth) add_limits(*find_collective(collective), rows, limits, &chart);
  return draw(chart);
}

}  // namespace

std::string collectives_page(const std::vector<CollectiveRow>& rows,
                             const std::vector<MachineLimit>& limits) {
  std::vector<std::string> order;
  std::map<std::string, std::vector<const CollectiveRow*>> by_collective;
  Table table{{"collective", "bytes", "count", "type", "op", "root", "memory", "in place", "p10 us",
               "p50 us", "p99 us", "algbw GB/s", "busbw GB/s", "wrong"},
              {}};
  for (const CollectiveRow& row : rows) {
    auto& list = by_collective[row.collective];
    if (list.empty()) order.push_back(row.collective);
    list.push_back(&row);
    table.rows.push_back({row.collective, fmt::format("{}", row.bytes),
                          fmt::format("{}", row.count), row.dtype, row.op,
                          fmt::format("{}", row.root), row.memory, row.in_place ? "yes" : "no",
                          fmt::format("{:.2f}", row.p10_us), fmt::format("{:.2f}", row.p50_us),
                          fmt::format("{:.2f}", row.p99_us), fmt::format("{:.3f}", row.algbw),
                          fmt::format("{:.3f}", row.busbw),
                          row.wrong ? fmt::format("{}", *row.wrong) : "not checked"});
  }
  std::vector<std::string> charts;
  for (const std::string& collective : order) {
    const auto& list = by_collective[collective];
    if (list.front()->bytes == 0) continue;  // a barrier has no sizes
    charts.push_back(chart_of(collective, list, limits, true));
    charts.push_back(chart_of(collective, list, limits, false));
  }
  const std::string subtitle = fmt::format(
      "{} ranks. Times are of the slowest rank; bandwidths from p50, 1 GB = 1e9 bytes. Memory: "
      "caller = the caller's own, pool = "
      "blocks of the pool, shared = one slot per host with the copy of each rank's part into it "
      "counted. The limit is the "
      "rate at which all ranks together copy and read as many bytes as the collective cannot avoid "
      "to, each in memory of its own "
      "of "
      "that size.",
      rows.empty() ? 0 : rows.front().ranks);
  return make_page("fsccl-perf collectives", subtitle, charts, {draw(table)});
}

}  // namespace fsccl::perf
