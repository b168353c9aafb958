// Writes to the private memory of a peer, which the peer may give back to its owner when the
// communicator fails. A rank that writes claims the memory first, by a word in its own block
// (RankBlock::writes_to), and then looks whether the communicator has failed. A rank that fails
// writes the board first, and then waits for the claims on its memory. Either the writer sees the
// failure and does not write, or the rank that fails sees the claim: each of the two stores its
// word and then loads the other's, and all threads see these four accesses in one order (seq_cst).
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "transports/shm/segment.h"

namespace fsccl::shm {

struct Owner {
  int rank;
  int32_t pid;
};

// Writes `bytes` bytes at `source` to `address` of the owner's memory. `own` is the block of the
// rank that writes.
Status write_under_claim(Header& header, RankBlock& own, const Owner& owner, uint64_t address,
                         const void* source, size_t bytes);

// Waits until the peer with this block, which is process `pid`, does not write to the private
// memory of `rank` any more. The board is written already. Takes no memory.
void await_claim(RankBlock& peer, int rank, int32_t pid);

}  // namespace fsccl::shm
