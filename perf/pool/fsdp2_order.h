// The allocations and releases of stock FSDP2 (fully_shard of PyTorch 2.15) in a step of a model
// with prefetch 1, which are compared with a step of FSCCL. A unit is gathered into one buffer, in
// which each parameter is padded to as many whole rows on each rank, and is then copied out into
// separate parameters. In forward, the gathered buffer stays until the next unit is copied out. In
// backward, gradients in the type of the parameters are copied into the buffer of a reduction in
// fp32; one reduction is in flight. Sharded gradients are not counted. Order and sizes follow
// torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py.
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/step_schedule.h"
#include "perf/model.h"

namespace fsccl::perf {

std::vector<fsccl::StepEvent> fsdp2_step(const Model& model, uint64_t ranks, uint64_t wire_bytes,
                                         const std::vector<bool>& kept);

// Returns the bytes that such steps reserve under the policy of PyTorch's caching allocator,
// simulated (caching_policy.h).
uint64_t fsdp2_reserved_bytes(const std::vector<fsccl::StepEvent>& step, bool expandable);

}  // namespace fsccl::perf
