// All-reduce of private memory, which peers can only read by a system call. First every rank reads
// its part of all inputs, reduces it in rank order and keeps the result in its own output. Then
// every rank reads the other parts of the result from the ranks that reduced them. No rank writes
// another rank's memory, so a rank that has failed may reuse its buffers at once. The plan is the
// fallback of a call in which some buffer is private memory (select/select.cpp). All ranks know the
// addresses of all inputs and outputs already, because the enter signals of the call's first plan
// had them.
//
// The plan is also right in place. In the first phase only rank q reads part q of an input, and
// rank q writes no other part of its own output. When the second phase begins, no rank reads inputs
// any more, and a rank does not write the part of its output that others read.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan all_reduce_read(const Shape& shape) {
  const ReductionShape f = reduction_of_all_reduce(shape);
  const uint64_t size = dtype_size(f.dtype);
  const auto part_of = [&](int rank) { return f.parts[static_cast<size_t>(rank)]; };
  Builder build("all_reduce_read", f.rank, f.ranks, f.ranks > 1 ? 3 : 1);
  build.peer_buffer("input", Role::input, f.input_bytes);
  build.peer_buffer("output", Role::output, f.output_bytes);
  build.signal(0);
  build.wait_all(0);
  const Shape::Part own = part_of(f.rank);
  build.reduce(build.mine(1, own.begin * size), f.dtype, build.mine(0, own.begin * size), f.dtype,
               own.count);
  if (f.ranks == 1) return build.take();
  build.signal(1);
  build.wait_all(1);
  for (int i = 1; i < f.ranks; i++) {
    const int q = build.peer(i);
    const uint64_t begin = part_of(q).begin * size;
    build.copy(build.mine(1, begin), build.at(q, 1, begin), part_of(q).count, f.dtype);
  }
  build.signal(2);
  build.wait_all(2);
  return build.take();
}

}  // namespace fsccl
