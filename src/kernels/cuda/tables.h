// Tables of pieces as kernels read them: each piece once, and a list of the tiles that blocks are
// dealt. No device is needed here.
//
// A tile has 4096 elements, or 16 KiB to copy. Blocks are dealt equal work without a search: 300
// small parameters are one wave, and a large parameter is many tiles. A grid has as few rounds as
// can be, and the same number of blocks for each multiprocessor, so the numbers of tiles of two
// multiprocessors differ by one at most.
#pragma once
#include <vector>

#include "kernels/cuda/device_kernels.h"
#include "kernels/cuda/launches.h"

namespace fsccl::cuda {

struct Cut {
  std::vector<Range> pieces;
  std::vector<Tile> tiles;
};

// Both return FSCCL_ERR_NOT_AVAILABLE if the kernels do not convert the types, and
// FSCCL_ERR_INVALID_ARGUMENT if there are more tiles than a launch can count.
Result<Cut> cut_casts(const std::vector<CastRange>& pieces);
Result<Cut> cut_reduces(const std::vector<ReduceRange>& pieces);  // a tile is a block of the norm

// Returns the number of blocks for `tiles` tiles, `most` at most. If there are at most `most`
// tiles, each has its own block. Otherwise it is the smallest number with which the blocks need no
// more rounds than `most` blocks would, so that all blocks are busy to the end, rounded up so that
// each multiprocessor has the same number of blocks. (Tiles are dealt to blocks in turn, and blocks
// to multiprocessors.)
uint32_t even_grid(uint32_t tiles, uint32_t multiprocessors, uint32_t most);

struct Grid {
  uint32_t blocks, threads;
};
// Returns the grid of a reduce, of `most` blocks at most. With a norm each block has one more warp,
// and one of the blocks adds the sums that the others leave.
Grid reduce_grid(uint32_t tiles, bool norm, uint32_t multiprocessors, uint32_t most);

// Returns a launch with the fields that follow from the bases, the number of sources and the
// epilogue. The bases are part of it if they fit.
ReduceLaunch reduce_launch(const CUdeviceptr* bases, uint32_t sources,
                           const ReduceEpilogue& epilogue);

}  // namespace fsccl::cuda
