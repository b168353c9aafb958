// Tiny all-gather: each rank's part rides in its enter signal, so a rank is done once it has seen every peer's signal. No peer's
// memory is touched.
#include "plan/build.h"

namespace fsccl {

Plan all_gather_inline(const Shape& shape) {
  const uint64_t part = shape.count * dtype_size(shape.dtype);
  Builder build("all_gather_inline", shape.rank, shape.ranks, 1);
  build.buffer("input", Role::input, shape.in_place ? 0 : part);
  build.buffer("output", shape.in_place ? Role::inout : Role::output, part * static_cast<uint64_t>(shape.ranks));
  if (part == 0) return build.only_enter();

  const Place own = build.here(1, part * static_cast<uint64_t>(shape.rank));
  const Place input = shape.in_place ? own : build.here(0, 0);
  build.signal(0, input, part);
  if (!shape.in_place) build.copy(own, input, shape.count, shape.dtype);
  for (int i = 1; i < shape.ranks; ++i) {
    const int q = build.peer(i);
    build.wait(q, 0, build.here(1, part * static_cast<uint64_t>(q)), part);
  }
  return build.take();
}

}  // namespace fsccl
