// The shared-memory transport's table (see README.md).
#pragma once
#include "fsccl/transport.h"

namespace fsccl {

const fsccl_transport_ops_t* shm_transport();
// Returns the bytes of each slot of a channel of so many ranks of this machine, where nothing else
// is asked for.
size_t shm_slot_bytes(int ranks);

}  // namespace fsccl
