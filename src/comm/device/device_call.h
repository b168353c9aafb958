// A collective on memory of a GPU, in the one form that all algorithms take: parts of the input and
// of the output, in elements, by rank. An operation that has the same part for all ranks has one
// part.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/collective.h"
#include "comm/list.h"
#include "cuda/device.h"

namespace fsccl {

using CallPart = Shape::Part;

struct DeviceCall {
  OpCode op = OpCode::barrier;
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  fsccl_dtype_t dtype = FSCCL_UINT8;
  fsccl_op_t reduction = FSCCL_SUM;
  int root = -1;
  int tag = 0;
  std::vector<CallPart> sends, receives;
  bool even = true;  // all parts have the same length and lie end to end, on all ranks
  cuda::CUstream stream = nullptr;

  uint64_t element() const { return dtype_size(dtype); }
  const std::byte* from(size_t part) const { return input + sends[part].begin * element(); }
  std::byte* to(size_t part) const { return output + receives[part].begin * element(); }
};

// Returns the device call of a call that Collectives::check_call has passed.
DeviceCall device_call(const CollectiveCall& call, int rank, int ranks, cuda::CUstream stream);
// Returns the device calls of a list, one after the other.
std::vector<DeviceCall> device_calls(const ListCall& list, int rank, int ranks,
                                     cuda::CUstream stream);

// The sends and receives of a call that only moves bytes, in as many turns as there are ranks. In
// turn t a rank sends to the rank t places after it and receives from the rank t places before it.
// In turn 0 it sends to itself. A part is null if there is nothing to send or receive.
struct Turn {
  int to, from;
  const CallPart *out, *in;
};
Turn turn_of(const DeviceCall& call, int turn, int rank, int ranks);

// Returns an error if a buffer that has elements is missing.
Status check_buffers(const DeviceCall& call);

}  // namespace fsccl
