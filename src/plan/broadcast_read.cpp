// Broadcast of private memory, which peers can only read by a system call: every receiver pulls the
// whole buffer of the root, in one copy. The plan is the fallback of a call in which some buffer is
// private memory (select/select.cpp). All ranks know the address of the root's buffer already,
// because the enter signals of the call's first plan had it. The root waits until all have read.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan broadcast_read(const Shape& shape) {
  Builder build("broadcast_read", shape.rank, shape.ranks, shape.ranks > 1 ? 2 : 1);
  build.peer_buffer("buffer", Role::inout, shape.count * shape.size());
  build.signal(0);
  build.wait_all(0);
  if (shape.ranks == 1) return build.take();
  if (shape.rank != shape.root)
    build.copy(build.mine(0, 0), build.at(shape.root, 0, 0), shape.count, shape.dtype);
  build.signal(1);
  if (shape.rank == shape.root) build.wait_all(1);
  return build.take();
}

}  // namespace fsccl
