// Claims on the private memory of peers, which they may give back to its owner when the
// communicator fails. A rank claims the memory first, by a word in its own block, and then looks
// whether the communicator has failed. A rank that fails writes the board first. Before it gives
// its memory back, it waits for the claims. Either the claimant sees the failure and touches
// nothing, or the rank that fails sees the claim: each of the two stores its word and then loads
// the other's, and all threads see these four accesses in one order (seq_cst).
//
// There are two kinds of claims. The system writes to the memory of another process under a claim
// on that rank (RankBlock::writes_to). Ranks of one process touch each other's memory directly
// under a claim on all of them (RankBlock::touching).
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
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

// Claims the memory of all ranks of this process, until end_touch(). Returns false, and claims
// nothing, if the communicator has failed.
bool begin_touch(Header& header, RankBlock& own);
void end_touch(RankBlock& own);

// Waits until no peer has a claim on the private memory of `rank` any more, but not beyond the
// deadline. `blocks` and `pids` are those of all ranks. The board is written already. Takes no
// memory.
void await_claims(RankBlock* blocks, int rank, const std::vector<int32_t>& pids, Deadline deadline);

}  // namespace fsccl::shm
