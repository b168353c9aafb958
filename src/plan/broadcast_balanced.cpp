// Broadcast in which the cores of all ranks move bytes. The buffer has `ranks` equal pieces. Each
// receiver pulls all pieces but the last from the root, and the root pushes the last piece to every
// receiver. So every rank moves the same amount: (ranks - 1) / ranks of the buffer.
//
// broadcast_balanced is for buffers that all ranks can touch. broadcast_balanced_read does the same
// with private memory, which the system reads and writes for the ranks. It is the fallback of a
// call in which some buffer is private memory (select/select.cpp). All ranks know the addresses of
// all buffers already, because the enter signals of the call's first plan had them.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {
namespace {

Plan balanced(const Shape& shape, const char* name, bool chooses) {
  const uint64_t size = shape.size(), bytes = shape.count * size;
  Builder build(name, shape.rank, shape.ranks, shape.ranks > 1 ? 2 : 1);
  build.peer_buffer("buffer", Role::inout, bytes);
  const uint64_t line = 64 / size,
                 piece = shape.count / static_cast<uint64_t>(shape.ranks) / line * line;
  const uint64_t pulled = shape.count - piece;
  build.signal(0);
  build.wait_all(0);
  if (shape.ranks == 1) return build.take();
  if (chooses) build.choose();
  if (shape.rank == shape.root) {
    for (int i = 1; i < shape.ranks; ++i)
      build.copy(build.at(build.peer(i), 0, pulled * size), build.mine(0, pulled * size), piece,
                 shape.dtype);
    build.signal(1);
    build.wait_all(1);
  } else {
    build.copy(build.mine(0, 0), build.at(shape.root, 0, 0), pulled, shape.dtype);
    build.signal(1);
    build.wait(shape.root, 1);
  }
  return build.take();
}

}  // namespace

Plan broadcast_balanced(const Shape& shape) { return balanced(shape, "broadcast_balanced", true); }
Plan broadcast_balanced_read(const Shape& shape) {
  return balanced(shape, "broadcast_balanced_read", false);
}

}  // namespace fsccl
