#include "perf/pool/row.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace fsccl::perf {
namespace {

using OrderedJson = nlohmann::ordered_json;

template <typename Value>
OrderedJson or_null(const std::optional<Value>& value) {
  return value ? OrderedJson(*value) : OrderedJson();
}
OrderedJson rounded(const std::optional<double>& value) {
  return value ? OrderedJson(std::round(*value * 10) / 10) : OrderedJson();
}

template <typename Value>
void read(const OrderedJson& json, const char* name, std::optional<Value>* value) {
  const auto member = json.find(name);
  if (member != json.end() && member->is_number()) *value = member->template get<Value>();
}

double over_bound(const ReplayRow& row, uint64_t bytes) {
  return static_cast<double>(bytes) /
         static_cast<double>(std::max<uint64_t>({row.live, row.clique_bound, 1}));
}
OrderedJson ratio_json(const ReplayRow& row, const std::optional<uint64_t>& bytes) {
  return bytes ? OrderedJson(std::round(over_bound(row, *bytes) * 1e4) / 1e4) : OrderedJson();
}

}  // namespace

double ratio(const ReplayRow& row) { return row.reserved ? over_bound(row, *row.reserved) : 0; }

std::string to_json(const ReplayRow& row) {
  return OrderedJson({{"trace", row.trace},
                      {"allocator", row.allocator},
                      {"how", row.how},
                      {"live", row.live},
                      {"clique_bound", row.clique_bound},
                      {"reserved", or_null(row.reserved)},
                      {"ratio", ratio_json(row, row.reserved)},
                      {"most_reserved", or_null(row.most_reserved)},
                      {"most_ratio", ratio_json(row, row.most_reserved)},
                      {"plan_us", rounded(row.plan_us)},
                      {"system_calls", or_null(row.system_calls)},
                      {"added_waits", or_null(row.added_waits)},
                      {"host_waits", or_null(row.host_waits)},
                      {"growths", or_null(row.growths)},
                      {"peak_variance", or_null(row.variance)},
                      {"alloc_free_ns_p50", rounded(row.p50_ns)},
                      {"alloc_free_ns_p99", rounded(row.p99_ns)},
                      {"with_order_ns_p50", rounded(row.with_order_p50_ns)},
                      {"with_order_ns_p99", rounded(row.with_order_p99_ns)},
                      {"note", row.note}})
      // The name of a trace may be that of its file, which need not be UTF-8.
      .dump(-1, ' ', false, OrderedJson::error_handler_t::replace);
}

std::optional<ReplayRow> row_of_json(const std::string& line) {
  const OrderedJson json = OrderedJson::parse(line, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  ReplayRow row;
  for (auto [name, text] : {std::pair("trace", &row.trace), std::pair("allocator", &row.allocator),
                            std::pair("how", &row.how), std::pair("note", &row.note)})
    if (json.contains(name) && json[name].is_string()) *text = json[name].get<std::string>();
  std::optional<uint64_t> live;
  read(json, "live", &live);
  row.live = live.value_or(0);
  read(json, "reserved", &row.reserved);
  read(json, "system_calls", &row.system_calls);
  read(json, "alloc_free_ns_p50", &row.p50_ns);
  read(json, "alloc_free_ns_p99", &row.p99_ns);
  return row;
}

std::string table_head() {
  return fmt::format(
      "# {:<38} {:<12} {:<9} {:>9} {:>8} {:>8} {:>8} {:>9} {:>6} {:>8} {:>7} {:>7} {:>7}  {}\n",
      "trace", "allocator", "how", "live GiB", "ratio", "at most", "plan us", "sys calls", "waits",
      "growths", "p50 ns", "p99 ns", "+order", "note");
}

std::string table_line(const ReplayRow& row) {
  const auto cell = [](const auto& value, int digits) {
    return value ? fmt::format("{:.{}f}", static_cast<double>(*value), digits) : std::string("-");
  };
  return fmt::format(
      "  {:<38} {:<12} {:<9} {:>9.4f} {:>8} {:>8} {:>8} {:>9} {:>6} {:>8} {:>7} {:>7} {:>7}  {}\n",
      row.trace, row.allocator, row.how, static_cast<double>(row.live) / 0x1p30,
      row.reserved ? fmt::format("{:.4f}", ratio(row)) : "-",
      row.most_reserved ? fmt::format("{:.4f}", over_bound(row, *row.most_reserved)) : "-",
      cell(row.plan_us, 0), cell(row.system_calls, 0), cell(row.added_waits, 0),
      cell(row.growths, 0), cell(row.p50_ns, 1), cell(row.p99_ns, 1),
      cell(row.with_order_p50_ns, 1), row.note);
}

}  // namespace fsccl::perf
