// Turns a collective of FSCCL into calls of NCCL.
#pragma once
#include "comm/device/device_call.h"
#include "transports/nccl/nccl_comm.h"

namespace fsccl {

// Returns the reason why NCCL cannot do this call as fsccl.h promises, or an empty text if it can.
std::string not_by_nccl(const DeviceCall& call);

// Enqueues a call. It is called inside Communicator::group(). `scratch` is 8 bytes of device
// memory, for a barrier. A call without elements does nothing.
Status enqueue(nccl::Communicator& comm, const DeviceCall& call, bool has_all_to_all,
               cuda::CUdeviceptr scratch);
// Enqueues only sends and receives: the parts between this rank and each other rank, and its own
// part.
Status enqueue_exchange(nccl::Communicator& comm, const DeviceCall& call);

}  // namespace fsccl
