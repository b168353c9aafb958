#include "comm/device/nccl_collectives.h"

#include <algorithm>

#include "kernels/kernels.h"

namespace fsccl {
namespace {

using nccl::ncclDataType_t;
using nccl::ncclRedOp_t;

// Elements that are only moved are bytes. NCCL has no 16-bit integers, and no bool, which is a byte
// that is 0 or 1.
struct Elements {
  ncclDataType_t type;
  uint64_t scale;  // the number of `type` in one element
};
Elements moved(fsccl_dtype_t dtype) {
  const uint64_t bytes = dtype_size(dtype);
  if (bytes % 4 == 0) return {nccl::ncclUint32, bytes / 4};
  return bytes == 2 ? Elements{nccl::ncclFloat16, 1} : Elements{nccl::ncclUint8, bytes};
}

ncclDataType_t summed_type(fsccl_dtype_t dtype) {
  switch (dtype) {
    case FSCCL_INT8:
      return nccl::ncclInt8;
    case FSCCL_INT32:
      return nccl::ncclInt32;
    case FSCCL_UINT32:
      return nccl::ncclUint32;
    case FSCCL_INT64:
      return nccl::ncclInt64;
    case FSCCL_UINT64:
      return nccl::ncclUint64;
    case FSCCL_FLOAT16:
      return nccl::ncclFloat16;
    case FSCCL_BFLOAT16:
      return nccl::ncclBfloat16;
    case FSCCL_FLOAT32:
      return nccl::ncclFloat32;
    case FSCCL_FLOAT64:
      return nccl::ncclFloat64;
    default:
      return nccl::ncclUint8;
  }
}

ncclRedOp_t operator_of(fsccl_dtype_t dtype, int kind) {
  if (dtype == FSCCL_BOOL)
    return kind == FSCCL_OP_SUM || kind == FSCCL_OP_MAX ? nccl::ncclMax : nccl::ncclMin;
  constexpr ncclRedOp_t kOperators[] = {nccl::ncclSum, nccl::ncclAvg, nccl::ncclMin, nccl::ncclMax,
                                        nccl::ncclProd};
  return kOperators[kind];
}

// The scale of a sum in the form of NCCL: in the type of the elements.
class Reduction {
 public:
  Reduction(nccl::Communicator& comm, const DeviceCall& call)
      : comm_(comm), type_(summed_type(call.dtype)) {
    if (!reduces(call.op)) return;
    if (call.reduction.kind != FSCCL_OP_PREMUL_SUM) {
      how_ = operator_of(call.dtype, call.reduction.kind);
      return;
    }
    double scale = 0;
    const auto wide = static_cast<float>(call.reduction.scale);
    if (call.dtype == FSCCL_FLOAT64) {
      scale = call.reduction.scale;
    } else {
      (void)cast(&scale, call.dtype, &wide, FSCCL_FLOAT32, 1, Stores::cached);
    }
    const nccl::Library& library = comm.library();
    status_ = comm.check("ncclRedOpCreatePreMulSum",
                         library.ncclRedOpCreatePreMulSum(
                             &how_, &scale, type_, nccl::ncclScalarHostImmediate, comm.handle()));
    made_ = status_.ok();
  }
  ~Reduction() {  // NCCL has copied what the calls need of it
    if (made_) (void)comm_.library().ncclRedOpDestroy(how_, comm_.handle());
  }
  Reduction(const Reduction&) = delete;
  Status take_status() { return std::move(status_); }
  ncclRedOp_t how() const { return how_; }
  ncclDataType_t type() const { return type_; }

 private:
  nccl::Communicator& comm_;
  ncclDataType_t type_;
  ncclRedOp_t how_ = nccl::ncclSum;
  bool made_ = false;
  Status status_;
};

Status gather_parts(nccl::Communicator& comm, const DeviceCall& call) {
  const nccl::Library& library = comm.library();
  const Elements unit = moved(call.dtype);
  if (call.even)
    return comm.check(
        "ncclAllGather",
        library.ncclAllGather(call.input, call.output, call.sends[0].count * unit.scale, unit.type,
                              comm.handle(), call.stream));
  for (int q = 0; q < comm.ranks(); q++) {
    const uint64_t count = call.receives[static_cast<size_t>(q)].count * unit.scale;
    if (!count) continue;
    std::byte* const to = call.to(static_cast<size_t>(q));
    FSCCL_TRY(comm.check("ncclBroadcast",
                         library.ncclBroadcast(q == comm.rank() ? call.input : to, to, count,
                                               unit.type, q, comm.handle(), call.stream)));
  }
  return success();
}

Status reduce_parts(nccl::Communicator& comm, const DeviceCall& call, const Reduction& reduction) {
  const nccl::Library& library = comm.library();
  if (call.even)
    return comm.check(
        "ncclReduceScatter",
        library.ncclReduceScatter(call.input, call.output, call.receives[0].count, reduction.type(),
                                  reduction.how(), comm.handle(), call.stream));
  for (int q = 0; q < comm.ranks(); q++) {
    const auto part = static_cast<size_t>(q);
    if (!call.sends[part].count) continue;
    // A rank that is not the root has no buffer for the result. It passes its input, to which NCCL
    // does not write.
    void* const to = q == comm.rank() ? call.output : const_cast<std::byte*>(call.from(part));
    FSCCL_TRY(
        comm.check("ncclReduce",
                   library.ncclReduce(call.from(part), to, call.sends[part].count, reduction.type(),
                                      reduction.how(), q, comm.handle(), call.stream)));
  }
  return success();
}

Status send(nccl::Communicator& comm, const DeviceCall& call, const CallPart& part, int peer) {
  const Elements unit = moved(call.dtype);
  return comm.check("ncclSend", comm.library().ncclSend(call.input + part.begin * call.element(),
                                                        part.count * unit.scale, unit.type, peer,
                                                        comm.handle(), call.stream));
}
Status receive(nccl::Communicator& comm, const DeviceCall& call, const CallPart& part, int peer) {
  const Elements unit = moved(call.dtype);
  return comm.check("ncclRecv", comm.library().ncclRecv(call.output + part.begin * call.element(),
                                                        part.count * unit.scale, unit.type, peer,
                                                        comm.handle(), call.stream));
}

}  // namespace

std::string not_by_nccl(const DeviceCall& call) {
  if (!reduces(call.op)) return "";
  if (call.dtype == FSCCL_INT16 || call.dtype == FSCCL_UINT16)
    return "NCCL does not reduce 16-bit integers";
  return "";
}

Status enqueue_exchange(nccl::Communicator& comm, const DeviceCall& call) {
  for (int turn = 0; turn < comm.ranks(); turn++) {
    const Turn one = turn_of(call, turn, comm.rank(), comm.ranks());
    if (one.out) FSCCL_TRY(send(comm, call, *one.out, one.to));
    if (one.in) FSCCL_TRY(receive(comm, call, *one.in, one.from));
  }
  return success();
}

Status enqueue(nccl::Communicator& comm, const DeviceCall& call, bool has_all_to_all,
               cuda::CUdeviceptr scratch) {
  const nccl::Library& library = comm.library();
  Reduction reduction(comm, call);
  FSCCL_TRY(reduction.take_status());
  const Elements unit = moved(call.dtype);
  const uint64_t count = call.sends.empty() ? 0 : call.sends[0].count;
  const uint64_t whole = std::max(count, call.receives.empty() ? 0 : call.receives[0].count);
  if (call.op == OpCode::barrier) {
    auto* const word = reinterpret_cast<void*>(scratch);
    return comm.check("ncclAllReduce",
                      library.ncclAllReduce(word, word, 1, nccl::ncclInt32, nccl::ncclSum,
                                            comm.handle(), call.stream));
  }
  if (call.even && !whole) return success();
  switch (call.op) {
    case OpCode::all_gather:
      return gather_parts(comm, call);
    case OpCode::reduce_scatter:
      return reduce_parts(comm, call, reduction);
    case OpCode::all_reduce:
      return comm.check("ncclAllReduce",
                        library.ncclAllReduce(call.input, call.output, count, reduction.type(),
                                              reduction.how(), comm.handle(), call.stream));
    case OpCode::reduce:
      return comm.check("ncclReduce",
                        library.ncclReduce(call.input, call.output, count, reduction.type(),
                                           reduction.how(), call.root, comm.handle(), call.stream));
    case OpCode::broadcast:
      return comm.check("ncclBroadcast",
                        library.ncclBroadcast(call.output, call.output, whole * unit.scale,
                                              unit.type, call.root, comm.handle(), call.stream));
    case OpCode::all_to_all:
      if (call.even && has_all_to_all)
        return comm.check("ncclAlltoAll",
                          library.ncclAlltoAll(call.input, call.output, whole * unit.scale,
                                               unit.type, comm.handle(), call.stream));
      [[fallthrough]];
    default:
      return enqueue_exchange(comm, call);
  }
}

}  // namespace fsccl
