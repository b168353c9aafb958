// Reduction by pulling: each rank reads its part of all inputs in place, reduces it in rank order,
// and writes the result in the same pass to the ranks that get it. Only rank q reads part q of an
// input, and only rank q writes part q of an output, after it has read. The plan is therefore also
// right if a rank, or its peers, pass the same memory as input and output.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan reduce_direct(const ReductionShape& f) {
  const uint64_t size = dtype_size(f.dtype);
  const Shape::Part part = f.parts[static_cast<size_t>(f.rank)];
  Builder build(std::string(f.name) + "_direct", f.rank, f.ranks, f.ranks > 1 ? 2 : 1);
  build.peer_buffer("input", Role::input, f.input_bytes);
  if (f.deliver == Deliver::self) {
    build.buffer("output", Role::output, f.output_bytes);
  } else {
    Buffer& output = build.peer_buffer("output", Role::output, f.output_bytes);
    if (f.deliver == Deliver::root) {
      output.peer_bytes.assign(static_cast<size_t>(f.ranks), 0);
      output.peer_bytes[static_cast<size_t>(f.root)] = f.input_bytes;
    }
  }
  build.signal(0);
  build.wait_all(0);
  build.choose();
  const uint64_t begin = part.begin * size;
  const Operand result = f.deliver == Deliver::self
                             ? build.mine(1, 0)
                             : build.at(f.deliver == Deliver::root ? f.root : f.rank, 1, begin);
  build.reduce(result, f.dtype, build.mine(0, begin), f.dtype, part.count);
  if (f.deliver == Deliver::all && part.count) build.last()->to_all = true;
  if (f.ranks == 1) return build.take();
  build.signal(1);
  build.wait_all(1);
  return build.take();
}

}  // namespace fsccl
