// Training steps as what a pool of units is asked for: each a trace on one stream that all
// allocators are given alike.
#pragma once
#include <string>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl::perf {

struct PoolStep {
  std::string name;
  std::vector<StepEvent> events;  // keys from 0 on, without gaps
  uint64_t keys = 0, pairs = 0;   // pairs: slots that are taken, and given back
  uint64_t bound_bytes = 0;       // the most that are live at once: no allocator can hold less

  // {"trace": name, "events": [[1: taken, 0: given back; key; bytes], ..]}
  std::string json() const;
};

// Equal layers between two larger units, a slot a unit; and the units of Llama 3 8B in bf16 as
// FSDP2 has them: parameters apart from what was gathered. Forward and backward, one unit fetched
// ahead. All steps that come again are alike.
std::vector<PoolStep> pool_steps();

}  // namespace fsccl::perf
