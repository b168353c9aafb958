// Blocks of a parameter are the pieces that a shard boundary never cuts. The last two dimensions of
// a parameter form a matrix (with fewer dimensions, a matrix of one row), and the other dimensions
// count matrices. Each matrix is a grid of blocks of block_rows x block_columns elements; the
// blocks at its right and lower edges may be smaller. Storage is block-major: the blocks follow
// each other row by row of the grid, and the elements of each block are row-major. With one block
// row, or blocks as wide as the matrix, this is plain row-major order.
#pragma once
#include <cstdint>
#include <vector>

namespace fsccl {

struct BlockGrid {
  uint64_t matrices = 0, rows = 0, columns = 0;  // 0 where the parameter is empty
  // at most rows and columns: the size of the largest block that exists
  uint64_t block_rows = 1, block_columns = 1;

  // The product of `dims` is at most 2^58. A block size of 0 counts as 1, and one that is larger
  // than the matrix counts as the matrix's.
  static BlockGrid make(const std::vector<int64_t>& dims, uint64_t block_rows,
                        uint64_t block_columns);
  uint64_t block() const { return block_rows * block_columns; }  // elements of the largest block
  // Returns the largest boundary between blocks at or below element `place`, which lies in the
  // parameter.
  uint64_t boundary_before(uint64_t place) const;
};

// Returns a lower bound of the largest of `ranks` shards that follows from the blocks alone. (The
// other bound is the number of elements divided by `ranks`.) For each b > 1, consider the blocks of
// at least b elements: B blocks with T elements together, where the size of each is a multiple of
// g. Some rank holds at least ceil(B / ranks) of these blocks, which have at least b elements each.
// Every rank holds a multiple of g of these elements, so some rank holds at least g times ceil(T /
// (g * ranks)). The two bounds are equal if all blocks have the same size.
uint64_t block_bound(const std::vector<BlockGrid>& grids, uint64_t ranks);

}  // namespace fsccl
