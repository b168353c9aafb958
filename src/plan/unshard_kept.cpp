// Unshard when the slot still holds what it should: everybody enters, nothing moves.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_kept(const UnitShape& shape) {
  Builder build("unshard_kept", shape.rank, shape.layout->ranks(), 1);
  Buffer& slot = add_unshard_buffers(build, shape, Role::input);
  slot.shared = slot.guarded = true;
  return build.only_enter();
}

}  // namespace fsccl
