// Moves the bytes of a redistribution between the ranks in rounds. In each round a rank sends each
// other rank the next bytes of the flow between them, whose order both ends know
// (redistribution.h). The most bytes of a flow in a round are the same for all ranks, and few
// enough that what a rank sends and receives in a round fits the memory that it has for this.
#pragma once
#include <vector>

#include "comm/communicator.h"
#include "fsccl/redistribute.h"
#include "redistribute/redistribution.h"

namespace fsccl {

// Collective and blocking. `buffers` are the buffers of `plan`, with this rank's addresses.
// `limit_bytes` limits the memory for the exchange; 0 stands for 64 MiB, and ranks may give
// different limits.
Status move_in_rounds(Communicator& comm, const Redistribution& plan,
                      const std::vector<fsccl_redistributed_t>& buffers, uint64_t limit_bytes);

}  // namespace fsccl
