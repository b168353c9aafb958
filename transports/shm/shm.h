// The shared-memory transport (see README.md).
#pragma once
#include "transports/transport.h"

namespace fsccl {

const Transport* shm_transport();
// Returns the bytes of each slot of a channel of so many ranks of this machine, if no other size is
// asked for.
size_t shm_slot_bytes(int ranks);

}  // namespace fsccl
