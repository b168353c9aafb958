// Tiny all-reduce: each rank's input travels in its enter signal. Every rank reduces the inputs of
// all ranks in rank order, so all ranks get the same bits.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan all_reduce_inline(const Shape& shape) {
  const uint64_t bytes = shape.count * shape.size();
  Builder build("all_reduce_inline", shape.rank, shape.ranks, 1);
  build.buffer("input", Role::input, bytes);
  build.buffer("output", Role::output, bytes);
  build.buffer("scratch", Role::scratch, static_cast<uint64_t>(shape.ranks) * kInlineBytes);
  if (bytes == 0) return build.barrier_only();

  const auto slot = [&](int q) { return build.mine(2, kInlineBytes * static_cast<uint64_t>(q)); };
  build.signal(0, build.mine(0, 0), bytes);
  build.copy(slot(shape.rank), build.mine(0, 0), shape.count, shape.dtype);
  for (int i = 1; i < shape.ranks; ++i) build.wait(build.peer(i), 0, slot(build.peer(i)), bytes);
  build.reduce_local(build.mine(1, 0), slot(0), shape.count, shape.dtype, kInlineBytes);
  return build.take();
}

}  // namespace fsccl
