// Training steps as sequences of requests to a pool of units. Each step is a trace on one stream,
// which is the same for all allocators.
#pragma once
#include <string>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl::perf {

struct PoolStep {
  std::string name;
  std::vector<StepEvent> events;  // the keys begin at 0 and have no gaps
  uint64_t keys = 0, pairs = 0;   // a pair is a slot that is taken and given back
  uint64_t bound_bytes = 0;       // the most bytes live at once; no allocator can hold less

  // Returns {"trace": name, "events": [[1 for taken or 0 for given back, key, bytes], ..]}.
  std::string json() const;
};

// Returns two kinds of steps. The first has equal layers between two larger units, and one slot for
// each unit. The second has the units of Llama 3 8B in bf16 as FSDP2 handles them, with parameters
// apart from the gathered buffer. A step has forward and backward, and gathers one unit ahead. All
// repetitions of a step are equal.
std::vector<PoolStep> pool_steps();

}  // namespace fsccl::perf
