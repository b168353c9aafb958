// The planner of the ragged layout decides which blocks each rank holds, so that the largest shard
// is small.
//
// Parameters of one block size form a stream, in the order in which they were given. Every rank
// takes one contiguous run of every stream, in rank order, so its part of a parameter is one piece.
// For a given largest shard (a level), the streams are dealt out from the largest blocks to the
// smallest; a rank takes blocks until the next one would exceed the level. The level is found by
// bisection between two bounds that are proved here, with W ranks, N elements and largest block b:
// - no plan is below max(ceil(N / W), block_bound);
// - a level of ceil(N / W) + b always succeeds: if blocks were left over, every rank would hold
//   more than level - b elements, and all ranks together more than N.
// If each block size divides the next larger one and no matrix has smaller blocks at its edges (the
// usual case: one block size, and vectors that may be cut anywhere), the lower bound succeeds: the
// room for blocks of size b is W * floor(level / b) minus what larger blocks took, regardless of
// how those were dealt out. Optimal packing of blocks of arbitrary sizes is NP-hard.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "layout/blocks.h"

namespace fsccl {

struct RaggedPlan {
  // Rank first_rank + k holds [cuts[first_cut + k], cuts[first_cut + k + 1]) of the parameter, for
  // k < ranks.
  struct Param {
    uint64_t first_cut = 0;
    uint32_t first_rank = 0, ranks = 0;
  };
  std::vector<Param> params;
  std::vector<uint64_t> cuts;
  uint64_t largest = 0;  // elements of the largest shard
};

// Empty grids get no piece.
RaggedPlan plan_ragged(const std::vector<BlockGrid>& grids, int ranks);

}  // namespace fsccl
