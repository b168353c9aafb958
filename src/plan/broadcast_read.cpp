// Broadcast of memory that only the system reads for others: every receiver pulls the whole buffer
// of the root, in one copy. It is the plan that a call goes on with when some buffer is private
// memory (select/select.cpp), so it asks nothing: all ranks know where the root's buffer is,
// because the call's first enter signals have said so. The root waits until all have read.
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
