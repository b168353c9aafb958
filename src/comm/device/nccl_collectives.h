// A collective of FSCCL as calls of NCCL.
#pragma once
#include "comm/device/device_call.h"
#include "transports/nccl/nccl_comm.h"

namespace fsccl {

// Why NCCL cannot do this as fsccl.h says it; empty: it can.
std::string not_by_nccl(const DeviceCall& call);

// Inside Communicator::group(). `scratch`: 8 bytes of device memory, for a barrier. A call of no
// elements does nothing.
Status enqueue(nccl::Communicator& comm, const DeviceCall& call, bool has_all_to_all,
               cuda::CUdeviceptr scratch);
// Enqueues sends and receives alone: the parts between this rank and each other rank, and its own.
Status enqueue_exchange(nccl::Communicator& comm, const DeviceCall& call);

}  // namespace fsccl
