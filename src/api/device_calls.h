// Calls on buffers in the memory of a GPU. They branch off here, before they reach the engine of
// the host.
#pragma once
#include "api/objects.h"
#include "comm/device/collectives.h"
#include "cuda/pointer.h"

namespace fsccl {

// Returns true if a call is on device memory: a buffer says so, or the stream if there is no
// buffer.
inline bool on_device(const CollectiveCall& call, void* stream) {
  int ordinal;
  return stream || (cuda::may_have_devices.load(std::memory_order_relaxed) &&
                    (cuda::ask_whether_on_device(call.output, &ordinal) ||
                     cuda::ask_whether_on_device(call.input, &ordinal)));
}
bool on_device(const ListCall& call, void* stream);

// Runs the call, or keeps it for the end of the group.
[[gnu::cold]] Status run_on_device(Communicator& comm, const CollectiveCall& call, void* stream,
                                   fsccl_work_t* work);
[[gnu::cold]] Status run_on_device(Communicator& comm, const ListCall& call, void* stream,
                                   fsccl_work_t* work);

}  // namespace fsccl
