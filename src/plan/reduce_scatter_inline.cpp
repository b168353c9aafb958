// Tiny reduce-scatter: each rank's whole input rides in its enter signal; every rank stores all of them side by side, in rank
// order, and folds its own part. The fold is the same as that of reduce_scatter_direct, so the bits are too.
#include "plan/build.h"

namespace fsccl {

Plan reduce_scatter_inline(const Shape& shape) {
  const auto ranks = static_cast<uint64_t>(shape.ranks);
  const uint64_t part = shape.count * dtype_size(shape.dtype), whole = part * ranks;
  const uint64_t own_part = part * static_cast<uint64_t>(shape.rank);
  Builder build("reduce_scatter_inline", shape.rank, shape.ranks, 1);
  build.buffer("input", shape.in_place ? Role::inout : Role::input, whole);
  build.buffer("output", Role::output, shape.in_place ? 0 : part);
  build.buffer("scratch", Role::scratch, part == 0 ? 0 : ranks * kInlineBytes);
  if (part == 0) return build.only_enter();

  const auto slot = [&](int q, uint64_t offset) { return build.here(2, kInlineBytes * static_cast<uint64_t>(q) + offset); };
  build.signal(0, build.here(0, 0), whole);
  build.copy(slot(shape.rank, own_part), build.here(0, own_part), shape.count, shape.dtype);
  for (int i = 1; i < shape.ranks; ++i) build.wait(build.peer(i), 0, slot(build.peer(i), 0), whole);
  const Place result = shape.in_place ? build.here(0, own_part) : build.here(1, 0);
  build.reduce_local(result, slot(0, own_part), shape.count, shape.dtype, kInlineBytes);
  return build.take();
}

}  // namespace fsccl
