// Tiny reduce-scatter: each rank's whole input travels in its enter signal. Every rank stores the
// inputs of all ranks side by side, in rank order, and reduces its own part. The order is that of
// reduce_direct, so the result has the same bits.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan reduce_scatter_inline(const Shape& shape) {
  const uint64_t size = shape.size(), whole = shape.whole_bytes();
  const Shape::Part own = shape.part(shape.rank);
  Builder build("reduce_scatter_inline", shape.rank, shape.ranks, 1);
  build.buffer("input", Role::input, whole);
  build.buffer("output", Role::output, own.count * size);
  build.buffer("scratch", Role::scratch, static_cast<uint64_t>(shape.ranks) * kInlineBytes);
  if (whole == 0) return build.barrier_only();

  const auto slot = [&](int q, uint64_t offset) {
    return build.mine(2, kInlineBytes * static_cast<uint64_t>(q) + offset);
  };
  build.signal(0, build.mine(0, 0), whole);
  build.copy(slot(shape.rank, own.begin * size), build.mine(0, own.begin * size), own.count,
             shape.dtype);
  for (int i = 1; i < shape.ranks; ++i) build.wait(build.peer(i), 0, slot(build.peer(i), 0), whole);
  build.reduce_local(build.mine(1, 0), slot(0, own.begin * size), own.count, shape.dtype,
                     kInlineBytes);
  return build.take();
}

}  // namespace fsccl
