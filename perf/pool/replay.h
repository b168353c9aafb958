// Runs traces through the pool's own code: the region that places slots, over an arena that grows.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/pool/trace.h"

namespace fsccl::perf {

struct ReplayOptions {
  int steps = 100;  // number of measured steps
  bool json = false;
  bool recorded = false;  // the first step is recorded instead of declared
  bool peers = true;
};

// The figures of one trace under one allocator. Missing figures were not measured.
struct ReplayRow {
  std::string trace, allocator, how;
  uint64_t live = 0, clique_bound = 0;
  std::optional<uint64_t> reserved;       // the most in the measured steps
  std::optional<uint64_t> most_reserved;  // the most ever, as while a step was recorded
  std::optional<double> plan_us;
  std::optional<uint64_t> system_calls, added_waits, growths, variance;
  // waits of the program, over all steps, for work on bytes that go back to the system
  std::optional<uint64_t> host_waits;
  std::optional<double> p50_ns, p99_ns;  // time of an allocation and its release
  // the same with the records and waits of the trace that order streams
  std::optional<double> with_order_p50_ns, with_order_p99_ns;
  std::string note;
  bool failed = false;
};

// Returns one row if the steps of the trace are alike. Otherwise it returns two: one with all steps
// declared as one, and one with only the first step declared.
std::vector<ReplayRow> replay_pool(const Trace& trace, const ReplayOptions& options);
// Measures an array in which an offset is looked up by its index. No allocator can be faster.
ReplayRow replay_array(const Trace& trace, const ReplayOptions& options);

}  // namespace fsccl::perf
