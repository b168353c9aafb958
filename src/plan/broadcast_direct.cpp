// Broadcast by pulling: every rank copies the root's buffer as soon as the root is there, and says so at tick 1; the root keeps its
// buffer until all have. The root signals tick 1 too, so that ticks are the same on every rank, but nobody waits for it.
#include "plan/build.h"

namespace fsccl {

Plan broadcast_direct(const Shape& shape) {
  Builder build("broadcast_direct", shape.rank, shape.ranks, shape.ranks > 1 ? 2 : 1);
  build.published("buffer", Role::inout, shape.count * dtype_size(shape.dtype));
  if (shape.count == 0 || shape.ranks == 1) return build.only_enter();

  build.signal(0);
  if (shape.rank == shape.root) {
    build.signal(1);
    build.wait_all(0);
    build.wait_all(1);
  } else {
    build.wait(shape.root, 0);
    build.copy(build.here(0, 0), build.at(shape.root, 0, 0), shape.count, shape.dtype);
    build.signal(1);
    build.wait_all(0);
  }
  return build.take();
}

}  // namespace fsccl
