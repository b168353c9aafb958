#include "report.h"

#include <fmt/format.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "numbers.h"

namespace fsccl::perf {
namespace {

double ratio(uint64_t value, uint64_t bound) { return bound == 0 ? 0 : static_cast<double>(value) / static_cast<double>(bound); }
double round_to(double value, double places) { return static_cast<double>(static_cast<int64_t>(value * places + 0.5)) / places; }

void print_line(const nlohmann::ordered_json& json) {
  fmt::print("{}\n", json.dump());
  std::fflush(stdout);
}

nlohmann::ordered_json named(const std::vector<std::pair<std::string, double>>& values) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : values) json[name] = round_to(value, 1e3);
  return json;
}

}  // namespace

void print_collectives_head(int ranks) {
  fmt::print(
      "# fsccl-perf collectives, {} ranks. Times are of the slowest rank, in us; bandwidths from p50, in GB/s (1e9 bytes).\n",
      ranks);
  fmt::print("#{:>14} {:>12} {:>12} {:>6} {:>6} {:>4} {:>6} {:>8} {:>10} {:>10} {:>10} {:>8} {:>8} {:>8}\n", "collective",
             "size(B)", "count", "type", "redop", "root", "memory", "in_place", "p10", "time(p50)", "p99", "algbw", "busbw",
             "#wrong");
}

void print_row(const CollectiveRow& row) {
  fmt::print(" {:>14} {:>12} {:>12} {:>6} {:>6} {:>4} {:>6} {:>8} {:>10.2f} {:>10.2f} {:>10.2f} {:>8.2f} {:>8.2f} {:>8}\n",
             row.collective, row.bytes, row.count, row.dtype, row.op, row.root, row.memory, row.in_place ? "yes" : "no", row.p10_us,
             row.p50_us, row.p99_us, row.algbw, row.busbw, row.wrong);
  std::fflush(stdout);
}

void print_json(const CollectiveRow& row) {
  print_line({{"coll", row.collective},
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
              {"wrong", row.wrong}});
}

void print_collectives_end(uint64_t wrong) {
  fmt::print("# {}\n", wrong == 0 ? "every checked element is right" : fmt::format("WRONG: {} elements", wrong));
}

void print_report(const StepReport& report) {
  fmt::print("# fsccl-perf step: {}, {} units ({} layers), {} parameters, {} ranks\n", report.model, report.units, report.layers,
             report.parameters, report.ranks);
  fmt::print("# wire {}, layout {}, keep {} ({} units kept), gradients {}, sharing {}, prefetch {}, plan {}\n", report.wire,
             report.layout, report.keep, report.kept_units, report.gradients, report.sharing, report.prefetch, report.plan);
  fmt::print("{:<28} {:>12.3f} ms   median of {} (fastest {:.3f}, slowest {:.3f})\n", "step", report.total_us / 1e3,
             report.steps_us.size(), percentile(report.steps_us, 0) / 1e3, percentile(report.steps_us, 1) / 1e3);
  for (const auto& [name, time] : report.phases_us) fmt::print("  {:<26} {:>12.3f} ms\n", name, time / 1e3);
  for (const auto& [name, time] : report.off_clock_us)
    fmt::print("  {:<26} {:>12.3f} ms   (not part of the step)\n", name, time / 1e3);
  fmt::print("{:<28} {:>15}   {:.3f} x the minimum of {}\n", "bytes moved, all ranks", format_bytes(report.bytes_moved),
             ratio(report.bytes_moved, report.bytes_minimum), format_bytes(report.bytes_minimum));
  fmt::print("{:<28} {:>15}   {:.3f} x the live bound of {}\n", "peak memory, all ranks", format_bytes(report.peak_bytes),
             ratio(report.peak_bytes, report.live_bound_bytes), format_bytes(report.live_bound_bytes));
  fmt::print("{:<28} {:>15}   {} hits, {} misses; {} growths; slots live at once {}\n", "plan, rank 0",
             format_bytes(report.planned_bytes), report.plan_hits, report.plan_misses, report.growths,
             format_bytes(report.live_peak_bytes));
  fmt::print("{:<28} {:>15}\n", "wrong elements", report.wrong);
  std::fflush(stdout);
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
  json["plan_hits"] = report.plan_hits;
  json["plan_misses"] = report.plan_misses;
  json["growths"] = report.growths;
  json["wrong"] = report.wrong;
  print_line(json);
}

}  // namespace fsccl::perf
