// All-reduce as reduce-scatter then all-gather, both by pulling. Rank q folds part q of all inputs into its output (tick 1) and the
// others copy it from there (tick 2). Parts are whole 64-byte lines, as even as possible; a short last line goes to the last rank
// that has a part. Part q of a rank's input is read by rank q alone, and a rank overwrites its part q only after rank q has folded:
// so the plan is right whether or not a rank, or its peers, run in place.
#include <algorithm>

#include "plan/build.h"

namespace fsccl {
namespace {

struct Part {
  uint64_t begin, count;  // elements
};

Part part_of(const Shape& shape, int q) {
  const uint64_t line = 64 / dtype_size(shape.dtype), lines = shape.count / line + (shape.count % line != 0);
  const auto ranks = static_cast<uint64_t>(shape.ranks), r = static_cast<uint64_t>(q);
  const uint64_t each = lines / ranks, longer = lines % ranks;  // the first `longer` ranks have one line more
  const uint64_t first = r * each + std::min(r, longer), last = first + each + (r < longer ? 1 : 0);
  const uint64_t begin = std::min(first * line, shape.count), end = std::min(last * line, shape.count);
  return {begin, end - begin};
}

}  // namespace

Plan all_reduce_direct(const Shape& shape) {
  const uint64_t size = dtype_size(shape.dtype), bytes = shape.count * size;
  Builder build("all_reduce_direct", shape.rank, shape.ranks, shape.ranks > 1 ? 3 : 1);
  build.published("input", Role::input, shape.in_place ? 0 : bytes);
  build.published("output", shape.in_place ? Role::inout : Role::output, bytes);
  if (bytes == 0) return build.only_enter();

  const uint32_t input = shape.in_place ? 1 : 0;
  const Part own = part_of(shape, shape.rank);
  build.signal(0);
  build.wait_all(0);
  build.reduce(build.here(1, own.begin * size), shape.dtype, build.here(input, own.begin * size), shape.dtype, own.count);
  if (shape.ranks == 1) return build.take();
  build.signal(1);
  for (int i = 1; i < shape.ranks; ++i) {
    const int q = build.peer(i);
    const Part part = part_of(shape, q);
    if (part.count == 0) continue;
    build.wait(q, 1);
    build.copy(build.here(1, part.begin * size), build.at(q, 1, part.begin * size), part.count, shape.dtype);
  }
  build.signal(2);
  build.wait_all(2);
  return build.take();
}

}  // namespace fsccl
