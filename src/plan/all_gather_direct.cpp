// All-gather by pulling: each rank reads every peer's part straight from where the peer has it, and tells at tick 1 that it has
// read everything. Parts that peers read are never written by their owner after its enter signal.
#include "plan/build.h"

namespace fsccl {

Plan all_gather_direct(const Shape& shape) {
  const uint64_t part = shape.count * dtype_size(shape.dtype);
  const uint64_t whole = part * static_cast<uint64_t>(shape.ranks);
  Builder build("all_gather_direct", shape.rank, shape.ranks, shape.ranks > 1 ? 2 : 1);
  if (shape.in_place) {
    build.buffer("input", Role::input, 0);
    build.published("output", Role::inout, whole);
  } else {
    build.published("input", Role::input, part);
    build.buffer("output", Role::output, whole);
  }
  if (part == 0) return build.only_enter();

  const auto part_of = [&](int q) { return part * static_cast<uint64_t>(q); };
  build.signal(0);
  if (!shape.in_place) build.copy(build.here(1, part_of(shape.rank)), build.here(0, 0), shape.count, shape.dtype);
  for (int i = 1; i < shape.ranks; ++i) {
    const int q = build.peer(i);
    build.wait(q, 0);
    const Place source = shape.in_place ? build.at(q, 1, part_of(q)) : build.at(q, 0, 0);
    build.copy(build.here(1, part_of(q)), source, shape.count, shape.dtype);
  }
  if (shape.ranks > 1) {
    build.signal(1);
    build.wait_all(1);
  }
  return build.take();
}

}  // namespace fsccl
