// Tiny broadcast: the bytes travel in the root's enter signal. A receiver's plan ends when the
// receiver has the bytes; the root's plan ends at once.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan broadcast_inline(const Shape& shape) {
  const uint64_t bytes = shape.count * shape.size();
  Builder build("broadcast_inline", shape.rank, shape.ranks, 1);
  build.buffer("buffer", Role::inout, bytes);
  if (bytes == 0) return build.barrier_only();

  build.quiet();
  if (shape.rank == shape.root) {
    build.signal(0, build.mine(0, 0), bytes);
    if (shape.ranks > 1) build.completes_early();
  } else {
    build.enter_to_receive();
    build.wait(shape.root, 0, build.mine(0, 0), bytes);
    if (shape.ranks > 2) build.completes_early();
  }
  return build.take();
}

}  // namespace fsccl
