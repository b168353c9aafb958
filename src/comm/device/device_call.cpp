#include "comm/device/device_call.h"

#include <algorithm>

namespace fsccl {
namespace {

std::vector<CallPart> equal_parts(uint64_t count, int ranks) {
  std::vector<CallPart> parts;
  for (int q = 0; q < ranks; q++) parts.push_back({static_cast<uint64_t>(q) * count, count});
  return parts;
}

// Returns the parts. Without displacements they lie end to end.
std::vector<CallPart> parts_of(const size_t* counts, const size_t* displacements, int ranks) {
  std::vector<CallPart> parts;
  uint64_t end = 0;
  for (int q = 0; q < ranks; q++) {
    parts.push_back({displacements ? displacements[q] : end, counts[q]});
    end += counts[q];
  }
  return parts;
}

bool one_output(OpCode op) { return op == OpCode::broadcast || op == OpCode::send; }

void make_parts(DeviceCall& made, const CollectiveCall& call, int rank, int ranks) {
  const CallPart whole{0, call.count};
  const bool root = rank == call.root;
  switch (call.op) {
    case OpCode::all_gather:
      made.sends = {whole}, made.receives = equal_parts(call.count, ranks);
      break;
    case OpCode::reduce_scatter:
      made.sends = equal_parts(call.count, ranks), made.receives = {whole};
      break;
    case OpCode::gather:
      made.sends = {whole};
      if (root) made.receives = equal_parts(call.count, ranks);
      break;
    case OpCode::scatter:
      if (root) made.sends = equal_parts(call.count, ranks);
      made.receives = {whole};
      break;
    case OpCode::all_to_all:
      made.sends = made.receives = equal_parts(call.count, ranks);
      break;
    case OpCode::reduce:
      made.sends = {whole};
      if (root) made.receives = {whole};
      break;
    case OpCode::broadcast:
    case OpCode::send:
      (root ? made.sends : made.receives) = {whole};
      made.input = made.output;
      break;
    case OpCode::all_reduce:
      made.sends = made.receives = {whole};
      break;
    default:
      break;
  }
}

}  // namespace

DeviceCall device_call(const CollectiveCall& call, int rank, int ranks, cuda::CUstream stream) {
  DeviceCall made;
  made.op = call.op;
  made.input = static_cast<const std::byte*>(call.input);
  made.output = static_cast<std::byte*>(call.output);
  made.dtype = call.dtype;
  made.reduction = call.reduction;
  made.root = call.root;
  made.tag = call.tag;
  made.stream = stream;
  made.even = !call.counts;
  const auto self = static_cast<size_t>(rank);
  if (call.op == OpCode::all_gather_v) {
    made.op = OpCode::all_gather;
    made.sends = {{0, call.counts[self]}};
    made.receives = parts_of(call.counts, call.displacements, ranks);
  } else if (call.op == OpCode::reduce_scatter_v) {
    made.op = OpCode::reduce_scatter;
    made.sends = parts_of(call.counts, nullptr, ranks);
    made.receives = {{0, call.counts[self]}};
  } else if (call.op == OpCode::all_to_all_v) {
    made.op = OpCode::all_to_all;
    made.sends = parts_of(call.counts, call.displacements, ranks);
    made.receives = parts_of(call.recv_counts, call.recv_displacements, ranks);
  } else {
    make_parts(made, call, rank, ranks);
  }
  return made;
}

std::vector<DeviceCall> device_calls(const ListCall& list, int rank, int ranks,
                                     cuda::CUstream stream) {
  std::vector<DeviceCall> made;
  for (size_t t = 0; t < list.count; t++) {
    const fsccl_tensor_t& tensor = list.tensors[t];
    CollectiveCall call;
    call.input = tensor.send;
    call.output = tensor.recv;
    call.dtype = tensor.dtype;
    call.reduction = list.reduction;
    call.root = list.root;
    const bool alike =
        std::all_of(tensor.counts, tensor.counts + (list.kind == ListKind::broadcast ? 1 : ranks),
                    [&](size_t count) { return count == tensor.counts[0]; });
    call.count = tensor.counts[0];
    call.counts = alike ? nullptr : tensor.counts;
    call.op = list.kind == ListKind::broadcast ? OpCode::broadcast
              : list.kind == ListKind::all_gather
                  ? (alike ? OpCode::all_gather : OpCode::all_gather_v)
                  : (alike ? OpCode::reduce_scatter : OpCode::reduce_scatter_v);
    made.push_back(device_call(call, rank, ranks, stream));
  }
  return made;
}

Turn turn_of(const DeviceCall& call, int turn, int rank, int ranks) {
  const bool one_out =
      call.op == OpCode::all_gather || call.op == OpCode::gather || call.op == OpCode::broadcast;
  const bool one_in = call.op == OpCode::scatter || call.op == OpCode::broadcast;
  const auto part = [](const std::vector<CallPart>& parts, int peer, bool one) -> const CallPart* {
    if (parts.empty()) return nullptr;
    const CallPart& found = parts[one ? 0 : static_cast<size_t>(peer)];
    return found.count ? &found : nullptr;
  };
  Turn made{(rank + turn) % ranks, (rank + ranks - turn) % ranks, nullptr, nullptr};
  if (call.op != OpCode::gather || made.to == call.root)
    made.out = part(call.sends, made.to, one_out);
  if (!one_in || made.from == call.root) made.in = part(call.receives, made.from, one_in);
  const bool stays = turn == 0 && made.out && made.in &&
                     call.input + made.out->begin * call.element() ==
                         call.output + made.in->begin * call.element();
  if (turn == 0 && (stays || !made.out || !made.in)) made.out = made.in = nullptr;
  return made;
}

Status check_buffers(const DeviceCall& call) {
  const auto filled = [](const std::vector<CallPart>& parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [](const CallPart& part) { return part.count > 0; });
  };
  const void* const input = one_output(call.op) ? call.output : call.input;
  if ((filled(call.sends) && !input) || (filled(call.receives) && !call.output))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "a buffer is NULL though its count is not 0");
  return success();
}

}  // namespace fsccl
