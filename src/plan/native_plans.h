// Plans of collectives on memory of GPUs: one or two native steps carry out the whole call
// (plan.h). select/native.h chooses the plan of a call, and comm/device carries it out.
#pragma once
#include <vector>

#include "plan/collectives.h"
#include "plan/fingerprint.h"

namespace fsccl {

// A call. The parts are by rank and count elements. If all ranks have the same part, there is one.
// Buffer 0 is the input and buffer 1 the output. A broadcast has only buffer 0.
struct NativeShape {
  OpCode op = OpCode::barrier;
  int rank = 0, ranks = 1, root = 0;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  std::vector<Shape::Part> sends, receives;
};

// The algorithm of a plan, and how it sums.
struct NativeMeans {
  NativeAlgorithm by{};
  NativeAlgorithm mover = NativeAlgorithm::nccl;  // summed: the algorithm that moves the parts
  bool host_in_rank_order = true;                 // the host's collectives sum in rank order
  bool divides = false;                           // a `divide` step makes averages of sums
};

Plan native_plan(const NativeShape& shape, const NativeMeans& means);

// Returns the part of an all_reduce that each rank sums by its kernel. Parts are whole cache lines.
std::vector<Shape::Part> summed_parts(uint64_t count, int ranks);

}  // namespace fsccl
