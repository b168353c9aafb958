// Unshard of a slot whose contents are still valid. The plan is only a barrier: it moves nothing.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_barrier(const UnitShape& shape) {
  Builder build("unshard_barrier", shape.rank, ranks_of(shape), 1);
  const Buffer slot{.name = "slot", .role = Role::input, .shared = true, .guarded = true};
  add_unit_buffers(build, shape, slot, Role::input, shape.shard_dtype);
  return build.barrier_only();
}

}  // namespace fsccl
