// Prints results as tables for people and as JSON for programs. Only rank 0 prints.
#pragma once
#include <cstdint>
#include <optional>
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
  double algbw = 0, busbw = 0;    // GB/s (1e9 bytes)
  std::optional<uint64_t> wrong;  // empty if nothing was checked
};
void print_collectives_head(int ranks);
// Prints one line of the table. A form that does not exist or was not asked for is null; at least
// one of the two is there.
void print_line(const CollectiveRow* out_of_place, const CollectiveRow* in_place);
void print_json(const CollectiveRow& row);
void print_collectives_end(const std::vector<CollectiveRow>& rows);

// The slots of a unit, and its times in the median step, which are means over the ranks.
struct UnitReport {
  std::string name;
  uint64_t parameters = 0, slot_bytes = 0, gradient_bytes = 0;
  double unshard_us = 0, reduce_us = 0;  // unshard_us: forward, backward and waits
  int gathers = 0;                       // gathers of a step that move bytes
};
// The memory of rank 0 right after an event of a step.
struct MemoryPoint {
  double time_us = 0;
  uint64_t live_bytes = 0;   // bytes of slots, as the pool counts them
  uint64_t bound_bytes = 0;  // bytes of slots that must be there
};

struct StepReport {
  std::string model, wire, layout, keep, gradients, sharing, plan;
  uint64_t parameters = 0;
  int units = 0, layers = 0, ranks = 0, prefetch = 0, kept_units = 0;
  bool dry_run = false;
  // time to make all units with their plans, on the slowest rank
  double create_us = 0;
  std::vector<double> steps_us;  // for each step the time of its slowest rank
  double total_us = 0;           // median of steps_us
  // phases of the median step, mean over the ranks
  std::vector<std::pair<std::string, double>> phases_us;
  // work off the clock; not part of total_us
  std::vector<std::pair<std::string, double>> off_clock_us;
  uint64_t bytes_moved = 0, bytes_minimum = 0;
  uint64_t peak_bytes = 0, live_bound_bytes = 0, live_peak_bytes = 0, planned_bytes = 0;
  // Bounds of a rank's plan: of this step, of the same step without slots by parameter, and
  // (prefetch + 3) times the largest unit.
  uint64_t plan_bound_bytes = 0, by_unit_bytes = 0, classic_bytes = 0;
  // bytes of the same step of FSDP2 (pool/fsdp2_order.h), simulated
  uint64_t fsdp2_bytes = 0, fsdp2_expandable_bytes = 0;
  bool by_parameter = false;
  uint64_t plan_hits = 0, plan_misses = 0, growths = 0;
  uint64_t wrong = 0;
  std::vector<UnitReport> unit_list;
  // phases of the median step, per rank
  std::vector<std::vector<std::pair<std::string, double>>> rank_phases_us;
  // memory over one more step, which runs only for a page
  std::vector<MemoryPoint> memory;
  uint64_t reserved_bytes = 0;  // by rank 0
  // bytes that all ranks must read and write for each byte of a slot of parameters or gradients
  double gather_reads = 0, gather_writes = 0, reduce_reads = 0, reduce_writes = 0;
};
// Flushes standard output. Ends the process if that fails, so that a full disk does not look like
// success.
void flush_output();
void print_report(const StepReport& report);
void print_json(const StepReport& report);

}  // namespace fsccl::perf
