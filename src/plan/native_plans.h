// Plans of collectives on memory of GPUs: the whole of a call is one native step, or two (plan.h).
// Which of these plans a call takes is chosen in select/native.h, and comm/device carries them out.
#pragma once
#include <vector>

#include "plan/collectives.h"
#include "plan/fingerprint.h"

namespace fsccl {

// A call. Parts are in elements, by rank; an operation that has one part for all ranks has one.
// Buffer 0 is the input and buffer 1 the output; a broadcast has buffer 0 alone.
struct NativeShape {
  OpCode op = OpCode::barrier;
  int rank = 0, ranks = 1, root = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  std::vector<Shape::Part> sends, receives;
};

// The means of a plan.
struct NativeMeans {
  NativeAlgorithm by{};
  NativeAlgorithm mover = NativeAlgorithm::nccl;  // summed: what moves the parts
  bool host_in_rank_order = true;  // the host's collectives sum in the order of the ranks
  bool divides = false;            // the means leaves averages to a `divide`
};

Plan native_plan(const NativeShape& shape, const NativeMeans& means);

// The parts of an all_reduce that each rank sums by its kernel: whole lines of memory.
std::vector<Shape::Part> summed_parts(uint64_t count, int ranks);

}  // namespace fsccl
