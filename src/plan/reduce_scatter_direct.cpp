// Reduce-scatter by pulling: each rank folds its own part of all inputs, reading them where they are, in rank order. In place, a
// rank overwrites only its own part of its own buffer, which no peer reads.
#include "plan/build.h"

namespace fsccl {

Plan reduce_scatter_direct(const Shape& shape) {
  const uint64_t part = shape.count * dtype_size(shape.dtype);
  const uint64_t own_part = part * static_cast<uint64_t>(shape.rank);
  Builder build("reduce_scatter_direct", shape.rank, shape.ranks, shape.ranks > 1 ? 2 : 1);
  build.published("input", shape.in_place ? Role::inout : Role::input, part * static_cast<uint64_t>(shape.ranks));
  build.buffer("output", Role::output, shape.in_place ? 0 : part);
  if (part == 0) return build.only_enter();

  const Place result = shape.in_place ? build.here(0, own_part) : build.here(1, 0);
  build.signal(0);
  build.wait_all(0);
  build.reduce(result, shape.dtype, build.here(0, own_part), shape.dtype, shape.count);
  if (shape.ranks > 1) {
    build.signal(1);
    build.wait_all(1);
  }
  return build.take();
}

}  // namespace fsccl
