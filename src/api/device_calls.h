// Calls whose buffers are memory of a GPU: they leave the way of the host's here, before anything
// of the engine is touched.
#pragma once
#include "api/objects.h"
#include "comm/device/collectives.h"
#include "cuda/pointer.h"

namespace fsccl {

// Returns true if a call is on device memory: a buffer says so, or the stream if there is no
// buffer.
inline bool on_device(const void* send, const void* recv, void* stream, int* ordinal) {
  return stream || cuda::on_device(recv, ordinal) || cuda::on_device(send, ordinal);
}

// Runs it, or keeps it for the end of the group.
[[gnu::cold]] Status run_on_device(Communicator& comm, const CollectiveCall& call, void* stream,
                                   fsccl_work_t* work, const size_t* recv_counts = nullptr,
                                   const size_t* recv_displacements = nullptr);
[[gnu::cold]] Status run_on_device(Communicator& comm, const ListCall& call, void* stream,
                                   fsccl_work_t* work);
const void* some_buffer(const ListCall& call);

}  // namespace fsccl
