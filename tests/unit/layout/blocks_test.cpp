// Compares boundaries and counts of blocks with a walk over every block of small parameters.
#include "layout/blocks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace fsccl::testing {
namespace {

// Returns the number of elements of each block, in the order of storage.
std::vector<uint64_t> walk(uint64_t matrices, uint64_t rows, uint64_t columns, uint64_t high,
                           uint64_t wide) {
  std::vector<uint64_t> sizes;
  for (uint64_t m = 0; m < matrices; ++m)
    for (uint64_t r = 0; r < rows; r += high)
      for (uint64_t c = 0; c < columns; c += wide)
        sizes.push_back(std::min(high, rows - r) * std::min(wide, columns - c));
  return sizes;
}

TEST(Blocks, BoundariesAreThoseOfAWalk) {
  std::mt19937_64 random(5);
  for (int round = 0; round < 2000; ++round) {
    const uint64_t matrices = 1 + random() % 4, rows = 1 + random() % 12,
                   columns = 1 + random() % 12;
    const uint64_t high = 1 + random() % 14, wide = 1 + random() % 14;
    const std::vector<int64_t> dims = {static_cast<int64_t>(matrices), static_cast<int64_t>(rows),
                                       static_cast<int64_t>(columns)};
    const BlockGrid grid = BlockGrid::make(dims, high, wide);
    const auto sizes = walk(matrices, rows, columns, high, wide);
    ASSERT_EQ(grid.block(), *std::max_element(sizes.begin(), sizes.end()));
    uint64_t begin = 0;
    for (const uint64_t size : sizes) {
      for (uint64_t place = begin; place < begin + size; ++place)
        ASSERT_EQ(grid.boundary_before(place), begin)
            << matrices << " of " << rows << " x " << columns << " in " << high << " x " << wide
            << " at " << place;
      begin += size;
    }
    ASSERT_EQ(begin, matrices * rows * columns);
  }
}

TEST(Blocks, BoundIsThatOfAWalk) {
  std::mt19937_64 random(6);
  for (int round = 0; round < 1000; ++round) {
    std::vector<BlockGrid> grids(1 + random() % 3);
    std::vector<uint64_t> all;
    for (BlockGrid& grid : grids) {
      const uint64_t rows = 1 + random() % 9, columns = 1 + random() % 9, high = 1 + random() % 9,
                     wide = 1 + random() % 9;
      grid =
          BlockGrid::make({static_cast<int64_t>(rows), static_cast<int64_t>(columns)}, high, wide);
      const auto sizes = walk(1, rows, columns, high, wide);
      all.insert(all.end(), sizes.begin(), sizes.end());
    }
    for (const uint64_t ranks : {1, 2, 3, 7, 100}) {
      uint64_t bound = 0;
      for (const uint64_t least : all) {
        if (least == 1) continue;
        const auto blocks = static_cast<uint64_t>(
            std::count_if(all.begin(), all.end(), [&](uint64_t size) { return size >= least; }));
        bound = std::max(bound, least * ((blocks + ranks - 1) / ranks));
        uint64_t divisor = 0, total = 0;
        for (const uint64_t size : all)
          if (size >= least) divisor = std::gcd(divisor, size), total += size;
        if (divisor > 1) bound = std::max(bound, divisor * ((total / divisor + ranks - 1) / ranks));
      }
      ASSERT_EQ(block_bound(grids, ranks), bound);
    }
  }
}

TEST(Blocks, ShapesOfAnyDimensions) {
  const BlockGrid scalar = BlockGrid::make({}, 32, 32), vector = BlockGrid::make({100}, 32, 32);
  EXPECT_EQ(scalar.matrices * scalar.rows * scalar.columns, 1u);
  EXPECT_EQ(vector.block(), 32u);  // one row of blocks
  EXPECT_EQ(vector.boundary_before(99), 96u);
  const BlockGrid experts = BlockGrid::make({2, 3, 64, 64}, 32, 32);
  EXPECT_EQ(experts.matrices, 6u);
  EXPECT_EQ(experts.block(), 1024u);
  EXPECT_EQ(BlockGrid::make({4, 6}, 0, 0).block(), 1u);
  EXPECT_EQ(BlockGrid::make({4, 6}, 1, ~uint64_t{0}).block(), 6u);  // a row
  EXPECT_EQ(BlockGrid::make({4, 0, 6}, 2, 2).matrices, 0u);
  EXPECT_EQ(block_bound({BlockGrid::make({4, 0, 6}, 2, 2)}, 3), 0u);
}

}  // namespace
}  // namespace fsccl::testing
