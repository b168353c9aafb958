// Tables of pieces as kernels read them: each piece once, and a list of the tiles that blocks are
// dealt. No device is needed here.
#pragma once
#include <vector>

#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/launches.h"

namespace fsccl::cuda {

struct Cut {
  std::vector<Range> pieces;
  std::vector<Tile> tiles;
};

// FSCCL_ERR_NOT_AVAILABLE: types that kernels do not convert. FSCCL_ERR_INVALID_ARGUMENT: more
// tiles than a launch can count.
Result<Cut> cut_casts(const std::vector<CastRange>& pieces);
Result<Cut> cut_reduces(const std::vector<ReduceRange>& pieces);  // a tile is a block of the norm

// Blocks for so many tiles: at most `most`. As few as have no more rounds, so that all are busy to
// the end, and then as many more as give each multiprocessor the same number: tiles are dealt to
// blocks in turn, and blocks to multiprocessors.
uint32_t even_grid(uint32_t tiles, uint32_t multiprocessors, uint32_t most);

struct Grid {
  uint32_t blocks, threads;
};
// The grid of a reduce. With a norm each block has one more warp, and one of the blocks, `most` at
// most, adds what the others leave.
Grid reduce_grid(uint32_t tiles, bool norm, uint32_t multiprocessors, uint32_t most);

// A launch as far as the table and the call say it. The bases lie within, if there are not too
// many.
ReduceLaunch reduce_launch(const CUdeviceptr* bases, uint32_t sources,
                           const ReduceEpilogue& epilogue);

}  // namespace fsccl::cuda
