// Unshard into slots that all ranks map: each rank writes its pieces at their final offsets, so the
// gather is only a barrier. Every byte of a parameter is written once per host.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_shared(const UnitShape& shape) {
  Builder build("unshard_shared", shape.rank, ranks_of(shape), 1);
  const Buffer slot{.name = "slot", .role = Role::output, .shared = true, .guarded = true};
  add_unit_buffers(build, shape, slot, Role::input, shape.shard_dtype);
  cast_own_pieces(build, shape);
  build.signal(0);
  build.wait_all(0);
  return build.take();
}

}  // namespace fsccl
