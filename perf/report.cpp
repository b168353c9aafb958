#include "report.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "base/whole_file.h"
#include "numbers.h"

namespace fsccl::perf {
namespace {

double ratio(uint64_t value, uint64_t bound) {
  return bound == 0 ? 0 : static_cast<double>(value) / static_cast<double>(bound);
}
double round_to(double value, double places) {
  return static_cast<double>(static_cast<int64_t>(value * places + 0.5)) / places;
}

void print_line(const nlohmann::ordered_json& json) {
  fmt::print("{}\n", json.dump());
  flush_output();
}

nlohmann::ordered_json named(const std::vector<std::pair<std::string, double>>& values) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : values) json[name] = round_to(value, 1e3);
  return json;
}

}  // namespace

void flush_output() {
  if (std::fflush(stdout) == 0 && !std::ferror(stdout)) return;
  fmt::print(stderr, "fsccl-perf: the results cannot be written: {}\n", why_not_written(errno));
  std::_Exit(1);
}

void print_collectives_head(int ranks) {
  fmt::print(
      "# fsccl-perf collectives, {} ranks. Times in us, of the slowest rank; algbw and busbw in "
      "GB/s (1e9 bytes), from p50.\n"
      "# memory: caller = the caller's own; pool = blocks of the pool, private to a rank; shared = "
      "one slot per host, the copy of "
      "the "
      "rank's part into it counted.\n",
      ranks);
  const std::string half = fmt::format("{:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "p10", "time", "p99",
                                       "algbw", "busbw", "#wrong");
  fmt::print("#{:>70} {:^52}  {:^52}\n", "", "out-of-place", "in-place");
  fmt::print("#{:>16} {:>11} {:>11} {:>6} {:>6} {:>4} {:>6}   {}   {}\n", "collective", "size(B)",
             "count", "type", "redop", "root", "memory", half, half);
  flush_output();  // the first row may come much later
}

void print_line(const CollectiveRow* out_of_place, const CollectiveRow* in_place) {
  const CollectiveRow& any = out_of_place ? *out_of_place : *in_place;
  const auto half = [](const CollectiveRow* row) {
    if (!row)
      return fmt::format("{:>9} {:>9} {:>9} {:>7} {:>7} {:>6}", "-", "-", "-", "-", "-", "-");
    return fmt::format("{:>9.2f} {:>9.2f} {:>9.2f} {:>7.2f} {:>7.2f} {:>6}", row->p10_us,
                       row->p50_us, row->p99_us, row->algbw, row->busbw,
                       row->wrong ? fmt::format("{}", *row->wrong) : "N/A");
  };
  fmt::print(" {:>16} {:>11} {:>11} {:>6} {:>6} {:>4} {:>6}   {}   {}\n", any.collective, any.bytes,
             any.count, any.dtype, any.op, any.root, any.memory, half(out_of_place),
             half(in_place));
  flush_output();
}

void print_json(const CollectiveRow& row) {
  print_line(
      {{"coll", row.collective},
       {"dtype", row.dtype},
       {"op", row.op},
       {"root", row.root},
       {"bytes", row.bytes},
       {"count", row.count},
       {"ranks", row.ranks},
       {"in_place", row.in_place},
       {"memory", row.memory},
       {"iterations", row.iterations},
       {"calls", row.calls},
       {"p10_us", round_to(row.p10_us, 1e3)},
       {"p50_us", round_to(row.p50_us, 1e3)},
       {"p99_us", round_to(row.p99_us, 1e3)},
       {"algbw", round_to(row.algbw, 1e4)},
       {"busbw", round_to(row.busbw, 1e4)},
       {"wrong", row.wrong ? nlohmann::ordered_json(*row.wrong) : nlohmann::ordered_json()}});
}

void print_collectives_end(const std::vector<CollectiveRow>& rows) {
  uint64_t wrong = 0;
  double busbw = 0;
  for (const CollectiveRow& row : rows) wrong += row.wrong.value_or(0), busbw += row.busbw;
  const bool checked = !rows.empty() && rows.front().wrong.has_value();
  fmt::print("# Out of bounds values : {} {}\n", wrong,
             wrong     ? "FAILED"
             : checked ? "OK"
                       : "(not checked)");
  fmt::print("# Avg bus bandwidth    : {:.4g}\n",
             rows.empty() ? 0 : busbw / static_cast<double>(rows.size()));
  flush_output();
}

void print_report(const StepReport& report) {
  fmt::print("# fsccl-perf step: {}, {} units ({} layers), {} parameters, {} ranks\n", report.model,
             report.units, report.layers, report.parameters, report.ranks);
  fmt::print(
      "# wire {}, layout {}, keep {} ({} units kept), gradients {}, sharing {}, prefetch {}, plan "
      "{}\n",
      report.wire, report.layout, report.keep, report.kept_units, report.gradients, report.sharing,
      report.prefetch, report.plan);
  fmt::print(
      "# memory: shards and sharded gradients are the caller's own; gathered parameters have a "
      "slot per host (sharing shared) or "
      "per\n"
      "# rank (private), gradients a slot per rank (slot) or the caller's own (private)\n");
  if (report.dry_run)
    fmt::print(
        "# dry run: no memory is reserved or touched, nothing is moved or checked; times are those "
        "of the bookkeeping\n");
  fmt::print("{:<28} {:>12.3f} ms\n", "making the units", report.create_us / 1e3);
  fmt::print("{:<28} {:>12.3f} ms   median of {} (fastest {:.3f}, slowest {:.3f})\n", "step",
             report.total_us / 1e3, report.steps_us.size(), percentile(report.steps_us, 0) / 1e3,
             percentile(report.steps_us, 1) / 1e3);
  for (const auto& [name, time] : report.phases_us)
    fmt::print("  {:<26} {:>12.3f} ms\n", name, time / 1e3);
  for (const auto& [name, time] : report.off_clock_us)
    fmt::print("  {:<26} {:>12.3f} ms   (not part of the step)\n", name, time / 1e3);
  fmt::print("{:<28} {:>15}   {:.3f} x the minimum of {}\n", "bytes moved, all ranks",
             format_bytes(report.bytes_moved), ratio(report.bytes_moved, report.bytes_minimum),
             format_bytes(report.bytes_minimum));
  fmt::print("{:<28} {:>15}   {:.3f} x the live bound of {}\n", "peak memory, all ranks",
             format_bytes(report.peak_bytes), ratio(report.peak_bytes, report.live_bound_bytes),
             format_bytes(report.live_bound_bytes));
  fmt::print("{:<28} {:>15}   {} hits, {} misses; {} growths; slots live at once {}\n",
             "plan, rank 0", format_bytes(report.planned_bytes), report.plan_hits,
             report.plan_misses, report.growths, format_bytes(report.live_peak_bytes));
  fmt::print(
      "{:<28} {:>15}   {:.3f} x {} units of the largest size ({}), {:.3f} x the bound by unit "
      "({})\n",
      report.by_parameter ? "  slots by parameter" : "  slots by unit",
      fmt::format("{:.3f} x bound", ratio(report.planned_bytes, report.plan_bound_bytes)),
      ratio(report.planned_bytes, report.classic_bytes), report.prefetch + 3,
      format_bytes(report.classic_bytes), ratio(report.planned_bytes, report.by_unit_bytes),
      format_bytes(report.by_unit_bytes));
  fmt::print(
      "{:<28} {:>15}   by FSDP2's order on torch's caching allocator, simulated: {:.3f} x it; "
      "{:.3f} x with expandable segments "
      "({})\n",
      "  beside", format_bytes(report.fsdp2_bytes), ratio(report.planned_bytes, report.fsdp2_bytes),
      ratio(report.planned_bytes, report.fsdp2_expandable_bytes),
      format_bytes(report.fsdp2_expandable_bytes));
  fmt::print("{:<28} {:>15}\n", "wrong elements",
             report.dry_run ? "not checked" : fmt::format("{}", report.wrong));
  flush_output();
}

void print_json(const StepReport& report) {
  nlohmann::ordered_json json = {{"model", report.model},
                                 {"parameters", report.parameters},
                                 {"units", report.units},
                                 {"layers", report.layers},
                                 {"ranks", report.ranks},
                                 {"wire", report.wire},
                                 {"layout", report.layout},
                                 {"keep", report.keep},
                                 {"kept_units", report.kept_units},
                                 {"gradients", report.gradients},
                                 {"sharing", report.sharing},
                                 {"prefetch", report.prefetch},
                                 {"plan", report.plan},
                                 {"dry_run", report.dry_run},
                                 {"create_us", round_to(report.create_us, 1e3)},
                                 {"total_us", round_to(report.total_us, 1e3)}};
  json["steps_us"] = nlohmann::ordered_json::array();
  for (double step : report.steps_us) json["steps_us"].push_back(round_to(step, 1e3));
  json["phases_us"] = named(report.phases_us);
  json["off_clock_us"] = named(report.off_clock_us);
  json["bytes_moved"] = report.bytes_moved;
  json["bytes_minimum"] = report.bytes_minimum;
  json["peak_bytes"] = report.peak_bytes;
  json["live_bound_bytes"] = report.live_bound_bytes;
  json["live_peak_bytes"] = report.live_peak_bytes;
  json["planned_bytes"] = report.planned_bytes;
  json["by_parameter"] = report.by_parameter;
  json["plan_bound_bytes"] = report.plan_bound_bytes;
  json["by_unit_bytes"] = report.by_unit_bytes;
  json["classic_bytes"] = report.classic_bytes;
  json["fsdp2_caching_bytes"] = report.fsdp2_bytes;
  json["fsdp2_expandable_bytes"] = report.fsdp2_expandable_bytes;
  json["plan_hits"] = report.plan_hits;
  json["plan_misses"] = report.plan_misses;
  json["growths"] = report.growths;
  json["wrong"] = report.wrong;
  json["unit_list"] = nlohmann::ordered_json::array();
  for (const UnitReport& unit : report.unit_list)
    json["unit_list"].push_back({{"name", unit.name},
                                 {"parameters", unit.parameters},
                                 {"slot_bytes", unit.slot_bytes},
                                 {"gradient_bytes", unit.gradient_bytes},
                                 {"unshard_us", round_to(unit.unshard_us, 1e3)},
                                 {"reduce_us", round_to(unit.reduce_us, 1e3)}});
  print_line(json);
}

}  // namespace fsccl::perf
