// How results look: tables for people, JSON for programs. Only rank 0 prints.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace fsccl::perf {

struct CollectiveRow {
  std::string collective, dtype, op, memory;
  int root = -1;
  uint64_t bytes = 0, count = 0;
  int ranks = 0;
  bool in_place = false;
  int iterations = 0, calls = 0;
  double p10_us = 0, p50_us = 0, p99_us = 0;
  double algbw = 0, busbw = 0;  // GB/s (1e9 bytes)
  uint64_t wrong = 0;
};
void print_collectives_head(int ranks);
void print_row(const CollectiveRow& row);
void print_json(const CollectiveRow& row);
void print_collectives_end(uint64_t wrong);

struct StepReport {
  std::string model, wire, layout, keep, gradients, sharing, plan;
  uint64_t parameters = 0;
  int units = 0, layers = 0, ranks = 0, prefetch = 0, kept_units = 0;
  std::vector<double> steps_us;                              // of the slowest rank
  double total_us = 0;                                       // median of steps_us
  std::vector<std::pair<std::string, double>> phases_us;     // of the median step, mean over the ranks
  std::vector<std::pair<std::string, double>> off_clock_us;  // likewise; not part of total_us
  uint64_t bytes_moved = 0, bytes_minimum = 0;
  uint64_t peak_bytes = 0, live_bound_bytes = 0, live_peak_bytes = 0, planned_bytes = 0;
  uint64_t plan_hits = 0, plan_misses = 0, growths = 0;
  uint64_t wrong = 0;
};
void print_report(const StepReport& report);
void print_json(const StepReport& report);

}  // namespace fsccl::perf
