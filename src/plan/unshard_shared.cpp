// Unshard into a slot that all ranks map: each rank writes its pieces at their final places, and the gather is a barrier. Every
// byte of a parameter is written once per host.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_shared(const UnitShape& shape) {
  Builder build("unshard_shared", shape.rank, shape.layout->ranks(), 1);
  Buffer& slot = add_unshard_buffers(build, shape, Role::output);
  slot.shared = slot.guarded = true;
  build.wait_released(0);
  cast_own_pieces(build, shape);
  build.signal(0);
  build.wait_all(0);
  return build.take();
}

}  // namespace fsccl
