// Tiny broadcast: the bytes ride in the root's enter signal. A receiver is done when it has them;
// the root at once.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan broadcast_inline(const Shape& shape) {
  const uint64_t bytes = shape.count * shape.size();
  Builder build("broadcast_inline", shape.rank, shape.ranks, 1);
  build.buffer("buffer", Role::inout, bytes);
  if (bytes == 0) return build.only_enter();

  build.quiet();
  if (shape.rank == shape.root) {
    build.signal(0, build.mine(0, 0), bytes);
    if (shape.ranks > 1) build.lazy();
  } else {
    build.enter_to_receive();
    build.wait(shape.root, 0, build.mine(0, 0), bytes);
    if (shape.ranks > 2) build.lazy();
  }
  return build.take();
}

}  // namespace fsccl
