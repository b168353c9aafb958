// The bytes of a redistribution, moved between the ranks in rounds. In each round every rank hands
// at most so much to each other, all the same, that what it sends and receives fits its memory for
// it: the next bytes of a flow, whose order both ends know (redistribution.h).
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "fsccl/redistribute.h"
#include "redistribute/redistribution.h"

namespace fsccl {

// Collective, blocking. `buffers` are those of `plan`, with this rank's addresses. limit_bytes: 0:
// 64 MiB. Ranks may differ in it.
Status move_in_rounds(Communicator& comm, const Redistribution& plan,
                      const std::vector<fsccl_redistributed_t>& buffers, uint64_t limit_bytes);

}  // namespace fsccl
