#include "api/device_calls.h"

#include "api/group.h"

namespace fsccl {
namespace {

Status no_work() {
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "work is not NULL in a call with a stream, or with buffers on a GPU: the call is in "
              "the order of its stream, so pass NULL as work, and record an event on the stream. "
              "With buffers in host memory, pass NULL as stream");
}

// Returns the GPU of a call. If there are two buffers, both must be on the same GPU.
Result<int> device_of(Communicator& comm, const void* send, const void* recv) {
  int sends = -1, recvs = -1;
  const bool send_there = cuda::on_device(send, &sends), recv_there = cuda::on_device(recv, &recvs);
  if (!send_there && !recv_there && (send || recv))
    return fail(FSCCL_ERR_NOT_AVAILABLE,
                "stream is not NULL, and the buffers are memory of the host: pass NULL");
  if ((send && !send_there) || (recv && !recv_there))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is memory of the host, the other buffer is on a GPU: give buffers of one GPU",
                recv_there ? "send" : "recv");
  if (send_there && recv_there && sends != recvs)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "send is on device {} and recv on device {}", sends,
                recvs);
  if (send_there || recv_there) return recv_there ? recvs : sends;
  const DeviceCollectives& device = DeviceCollectives::of(comm);
  if (device.prepared()) return device.device().ordinal();
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "stream is not NULL, and no buffer tells of which device it is: call a collective of "
              "communicator {} with a buffer "
              "on the device first, or pass NULL",
              comm.name());
}

Status issue(Communicator& comm, std::vector<DeviceCall> calls, int ordinal) {
  if (grouped()) {
    for (const DeviceCall& call : calls) FSCCL_TRY(check_buffers(call));
    add_to_group({&comm, std::move(calls), ordinal});
    return success();
  }
  DeviceCollectives& device = DeviceCollectives::of(comm);
  FSCCL_TRY(device.check_captures(ordinal, calls));
  FSCCL_TRY(device.prepare(ordinal));
  return device.run(calls);
}

}  // namespace

Status run_on_device(Communicator& comm, const CollectiveCall& given, void* stream,
                     fsccl_work_t* work) {
  if (work) return no_work();
  CollectiveCall call = given;
  if ((call.op == OpCode::reduce || call.op == OpCode::gather) && call.root != comm.rank())
    call.output = nullptr;
  if (call.op == OpCode::scatter && call.root != comm.rank()) call.input = nullptr;
  FSCCL_TRY(comm.collectives().check_call(call));
  if (call.op == OpCode::all_to_all_v &&
      !(call.counts && call.displacements && call.recv_counts && call.recv_displacements))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "an array of counts or displacements is NULL");
  FSCCL_ASSIGN(const int ordinal, device_of(comm, call.input, call.output));
  std::vector<DeviceCall> calls;
  calls.push_back(device_call(call, comm.rank(), comm.size(), static_cast<cuda::CUstream>(stream)));
  return issue(comm, std::move(calls), ordinal);
}

// The first buffer of a list decides.
bool on_device(const ListCall& call, void* stream) {
  int ordinal;
  for (size_t t = 0; call.tensors && t < call.count; t++) {
    const fsccl_tensor_t& tensor = call.tensors[t];
    if (const void* const buffer = tensor.recv ? tensor.recv : tensor.send)
      return stream || cuda::on_device(buffer, &ordinal);
  }
  return stream;
}

Status run_on_device(Communicator& comm, const ListCall& call, void* stream, fsccl_work_t* work) {
  if (work) return no_work();
  FSCCL_TRY(check_list(call, comm.engine()));
  int ordinal = -1;
  for (size_t t = 0; t < call.count; t++) {
    const bool broadcast = call.kind == ListKind::broadcast;  // its send is not used
    if (!call.tensors[t].recv && (broadcast || !call.tensors[t].send)) continue;
    FSCCL_ASSIGN(const int on_device,
                 device_of(comm, broadcast ? nullptr : call.tensors[t].send, call.tensors[t].recv));
    if (ordinal >= 0 && on_device != ordinal)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "list[{}] is on device {}, others on device {}", t,
                  on_device, ordinal);
    ordinal = on_device;
  }
  if (ordinal < 0) {
    FSCCL_ASSIGN(ordinal, device_of(comm, nullptr, nullptr));
  }
  std::vector<DeviceCall> calls =
      device_calls(call, comm.rank(), comm.size(), static_cast<cuda::CUstream>(stream));
  if (calls.empty()) {  // a barrier
    calls.emplace_back();
    calls.back().stream = static_cast<cuda::CUstream>(stream);
  }
  return issue(comm, std::move(calls), ordinal);
}

}  // namespace fsccl
