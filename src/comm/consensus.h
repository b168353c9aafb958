// How the ranks of a communicator come to one answer before they go on: each tells the others a few
// bytes, blocking.
#pragma once
#include "comm/communicator.h"

namespace fsccl {

// Gathers the `bytes` bytes at `mine` of each rank into `all`, in rank order. Collective, blocking.
Status gather(Communicator& comm, const void* mine, void* all, uint64_t bytes);

}  // namespace fsccl
