// Tiny all-gather: each rank's part travels in its enter signal, so a rank is done once it has seen
// every peer's signal. No peer's memory is touched.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan all_gather_inline(const Shape& shape) {
  const uint64_t size = shape.size();
  const auto bytes = [&](int q) { return shape.part(q).count * size; };
  const auto part = [&](int q) { return Operand{1, shape.rank, shape.part(q).begin * size}; };
  Builder build("all_gather_inline", shape.rank, shape.ranks, 1);
  build.buffer("input", Role::input, bytes(shape.rank));
  build.buffer("output", Role::output, shape.whole_bytes());
  build.signal(0, build.mine(0, 0), bytes(shape.rank));
  build.copy(part(shape.rank), build.mine(0, 0), shape.part(shape.rank).count, shape.dtype);
  for (int i = 1; i < shape.ranks; ++i)
    build.wait(build.peer(i), 0, part(build.peer(i)), bytes(build.peer(i)));
  return build.take();
}

}  // namespace fsccl
