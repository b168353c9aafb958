// Blocks of a parameter: the pieces that a shard boundary never cuts. The last two dimensions of a
// parameter are a matrix (fewer dimensions: one row), the others count matrices; each matrix is a
// grid of blocks of block_rows x block_columns elements, smaller at its right and lower edge.
// Storage is block-major: block after block, row by row of the grid, the elements of a block row
// major. With one block row, or blocks as wide as the matrix, that is the plain row-major order.
#pragma once
#include <cstdint>
#include <vector>

namespace fsccl {

struct BlockGrid {
  uint64_t matrices = 0, rows = 0, columns = 0;  // 0 where the parameter is empty
  // at most rows and columns: the largest block there really is
  uint64_t block_rows = 1, block_columns = 1;

  // `dims` multiply to at most 2^58. Blocks of 0 rows or columns count as 1, larger ones than the
  // matrix as the matrix.
  static BlockGrid make(const std::vector<int64_t>& dims, uint64_t block_rows,
                        uint64_t block_columns);
  uint64_t block() const { return block_rows * block_columns; }  // elements of the largest block
  // The largest boundary between blocks at or below element `place`, which lies in the parameter.
  uint64_t boundary_before(uint64_t place) const;
};

// A bound on the largest of `ranks` shards that blocks alone give; the other is all elements /
// ranks. For each b > 1, consider the B blocks of at least b elements, T elements together, all
// multiples of g. Some rank holds ceil(B / ranks) of them, so at least b
// * ceil(B / ranks) elements; and every rank holds a multiple of g of them, so some rank g * ceil(T
//   / (g * ranks)). The two are
// equal where there is one size of blocks.
uint64_t block_bound(const std::vector<BlockGrid>& grids, uint64_t ranks);

}  // namespace fsccl
