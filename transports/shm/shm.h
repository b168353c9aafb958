// The transport within a host, over memory that all ranks of a communicator map.
//
// Signals. A rank has 16 lines of 64 bytes, which it uses in turn: tick, fingerprint (32 bytes) and
// payload (24 bytes). signal() wakes sleepers by the rule of base/futex.h. prepare() fetches the
// rank's next line back from the peers that have read it.
//
// Slots. A rank writes one ring, its own, and all ranks read it. The ring is twice as long as a
// core's own cache, because a store to a line that other cores still hold takes several times as
// long. Two ranks that send to each other exchange their rings (engine/slot_ring.h).
//
// Private memory. When a channel opens, every rank tries with its neighbour whether the system lets
// it read there. If one rank cannot read, none does, and private memory goes through slots only.
// Memory in an arena is mapped by every rank, so the engine touches it without this transport.
//
// Sleeping. word() returns the futex of a peer's line. Sleepers count themselves in the owner's
// `sleepers`, and a signal makes a system call only if there are any.
#pragma once
#include "transports/transport.h"

namespace fsccl {

const Transport* shm_transport();
// Returns the bytes of each slot of a channel of so many ranks of this machine, if no other size is
// asked for.
size_t shm_slot_bytes(int ranks);

}  // namespace fsccl
