#include "layout/blocks.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/round_up.h"

namespace fsccl {

BlockGrid BlockGrid::make(const std::vector<int64_t>& dims, uint64_t block_rows,
                          uint64_t block_columns) {
  BlockGrid grid;
  if (std::find(dims.begin(), dims.end(), 0) != dims.end()) return grid;
  const size_t count = dims.size();
  grid.matrices = 1;
  grid.columns = count > 0 ? static_cast<uint64_t>(dims[count - 1]) : 1;
  grid.rows = count > 1 ? static_cast<uint64_t>(dims[count - 2]) : 1;
  for (size_t d = 0; d + 2 < count; ++d) grid.matrices *= static_cast<uint64_t>(dims[d]);
  grid.block_rows = std::clamp<uint64_t>(block_rows, 1, grid.rows);
  grid.block_columns = std::clamp<uint64_t>(block_columns, 1, grid.columns);
  return grid;
}

uint64_t BlockGrid::boundary_before(uint64_t place) const {
  if (block() == 1) return place;
  const uint64_t in_matrix = place % (rows * columns);
  const uint64_t in_band = in_matrix % (block_rows * columns);  // a band is a row of the grid
  const uint64_t height = std::min(block_rows, rows - (in_matrix - in_band) / columns);
  return place - in_band % (height * block_columns);
}

uint64_t block_bound(const std::vector<BlockGrid>& grids, uint64_t ranks) {
  // elements of a block, and how many such blocks there are
  std::vector<std::pair<uint64_t, uint64_t>> kinds;
  for (const BlockGrid& grid : grids) {
    const uint64_t down = grid.rows / grid.block_rows, across = grid.columns / grid.block_columns;
    const uint64_t low = grid.rows % grid.block_rows, narrow = grid.columns % grid.block_columns;
    kinds.emplace_back(grid.block(), grid.matrices * down * across);
    kinds.emplace_back(grid.block_rows * narrow, grid.matrices * down);
    kinds.emplace_back(low * grid.block_columns, grid.matrices * across);
    kinds.emplace_back(low * narrow, grid.matrices);
  }
  std::sort(kinds.begin(), kinds.end(), std::greater<>());
  uint64_t bound = 0, blocks = 0, total = 0, divisor = 0;
  for (const auto& [elements, count] : kinds) {
    if (elements <= 1) break;
    if (count == 0) continue;
    blocks += count;
    total += elements * count;
    divisor = std::gcd(divisor, elements);
    bound = std::max(bound, elements * ceil_div(blocks, ranks));
    if (divisor > 1) bound = std::max(bound, divisor * ceil_div(total / divisor, ranks));
  }
  return bound;
}

}  // namespace fsccl
