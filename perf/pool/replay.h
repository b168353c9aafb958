// Traces through the pool's own code: the region that places slots, over an arena that it grows.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "perf/pool/trace.h"

namespace fsccl::perf {

struct ReplayOptions {
  int steps = 100;  // measured
  bool json = false;
  bool recorded = false;  // the first step is recorded, instead of declared
  bool peers = true;
};

// One trace under one allocator. Missing figures were not measured.
struct ReplayRow {
  std::string trace, allocator, how;
  uint64_t live = 0, clique_bound = 0;
  std::optional<uint64_t> reserved;       // the most in the measured steps
  std::optional<uint64_t> most_reserved;  // the most ever, as while a step was recorded
  std::optional<double> plan_us;
  std::optional<uint64_t> system_calls, added_waits, growths, variance;
  // ever: of the program, for work on bytes that it gives back to the system
  std::optional<uint64_t> host_waits;
  std::optional<double> p50_ns, p99_ns;  // time of an allocation and its release
  // and what the trace says of streams between them
  std::optional<double> with_order_p50_ns, with_order_p99_ns;
  std::string note;
  bool failed = false;
};

// A trace whose steps are alike: one row. Else two: all steps declared as one, and only the first.
std::vector<ReplayRow> replay_pool(const Trace& trace, const ReplayOptions& options);
ReplayRow replay_array(const Trace& trace,
                       // an offset by index: what no allocator can be faster than
                       const ReplayOptions& options);

}  // namespace fsccl::perf
