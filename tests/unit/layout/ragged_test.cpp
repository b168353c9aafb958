// Tests the ragged planner. Every shard boundary lies between blocks. The largest shard has the
// size that is reported, and is not below the bound. Where the planner promises the smallest
// possible size, it is compared with every assignment of the blocks of small units.
#include "layout/ragged.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>

#include "layout/layout.h"
#include "random_params.h"

namespace fsccl::testing {
namespace {

Layout ragged(std::vector<ParamShape> params, int ranks) {
  auto made = Layout::make(FSCCL_LAYOUT_RAGGED, std::move(params), ranks);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

uint64_t ceil_div(uint64_t value, uint64_t divisor) {
  return value / divisor + (value % divisor != 0);
}

TEST(Ragged, CutsBetweenBlocksAndReportsTheLargestShard) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    const auto params = random_blocks(random);
    const int ranks = 1 + static_cast<int>(random() % 64);
    const Layout layout = ragged(params, ranks);
    uint64_t block = 0, largest = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      const BlockGrid grid =
          BlockGrid::make(params[i].dims, params[i].block_rows, params[i].block_columns);
      if (layout.numel(i) == 0) continue;
      block = std::max(block, grid.block());
      for (int rank = 0; rank < ranks; ++rank) {
        const Piece piece = layout.piece(rank, i);
        if (piece.count == 0) continue;
        ASSERT_EQ(grid.boundary_before(piece.begin), piece.begin)
            << "parameter " << i << ", ranks " << ranks;
        const uint64_t end = piece.begin + piece.count;
        ASSERT_TRUE(end == layout.numel(i) || grid.boundary_before(end) == end);
      }
    }
    for (int rank = 0; rank < ranks; ++rank) largest = std::max(largest, layout.shard_total(rank));
    const auto w = static_cast<uint64_t>(ranks);
    ASSERT_EQ(layout.largest_shard(), largest);
    ASSERT_EQ(layout.padding(), w * largest - layout.total());
    ASSERT_GE(layout.padding(), layout.padding_bound());
    ASSERT_LE(largest, ceil_div(layout.total(), w) + block);
  }
}

TEST(Ragged, OfElementsIsFlat) {
  std::mt19937_64 random(8);
  for (int round = 0; round < 300; ++round) {
    const auto params = random_params(random);
    const int ranks = 1 + static_cast<int>(random() % 64);
    const Layout layout = ragged(params, ranks),
                 flat = Layout::make(FSCCL_LAYOUT_FLAT, params, ranks).take();
    ASSERT_LT(layout.padding(), static_cast<uint64_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank)
      for (size_t i = 0; i < params.size(); ++i) {
        ASSERT_EQ(layout.piece(rank, i).begin, flat.piece(rank, i).begin);
        ASSERT_EQ(layout.piece(rank, i).count, flat.piece(rank, i).count);
      }
  }
}

// Returns the smallest possible size of the largest shard, if each rank gets one run of blocks of
// each parameter, in any order of ranks. `params` has the sizes of the blocks of each parameter, in
// the order of storage.
uint64_t best_of_all(const std::vector<std::vector<uint64_t>>& params, size_t ranks) {
  uint64_t best = ~uint64_t{0};
  std::vector<uint64_t> load(ranks);
  // Block `b` of parameter `p` goes to `rank`, or to one that `used` does not name yet.
  std::function<void(size_t, size_t, size_t, uint64_t)> place = [&](size_t p, size_t b, size_t rank,
                                                                    uint64_t used) {
    if (*std::max_element(load.begin(), load.end()) >= best) return;
    if (p == params.size()) {
      best = *std::max_element(load.begin(), load.end());
      return;
    }
    if (b == params[p].size()) return place(p + 1, 0, ranks, 0);
    for (size_t r = 0; r < ranks; ++r) {
      if (r != rank && (used >> r & 1)) continue;
      load[r] += params[p][b];
      place(p, b + 1, r, used | uint64_t{1} << r);
      load[r] -= params[p][b];
    }
  };
  place(0, 0, ranks, 0);
  return best;
}

std::vector<uint64_t> blocks_of(const BlockGrid& grid) {
  std::vector<uint64_t> sizes;
  for (uint64_t at = 0, end = grid.matrices * grid.rows * grid.columns; at < end;) {
    uint64_t next = at + 1;
    while (next < end && grid.boundary_before(next) != next) ++next;
    sizes.push_back(next - at);
    at = next;
  }
  return sizes;
}

struct Small {
  std::vector<BlockGrid> grids;
  std::vector<std::vector<uint64_t>> blocks;
  uint64_t elements = 0;
};

void add(Small& small, int64_t rows, int64_t columns, uint64_t block_rows, uint64_t block_columns) {
  small.grids.push_back(BlockGrid::make({rows, columns}, block_rows, block_columns));
  small.blocks.push_back(blocks_of(small.grids.back()));
  small.elements += static_cast<uint64_t>(rows * columns);
}

TEST(Ragged, IsOptimalWhereBlockSizesDivideEachOther) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 1000; ++round) {
    const size_t ranks = 2 + random() % 2;
    Small small;
    for (const int64_t size : {12, 4, 1})  // block sizes, each of which divides the one before
      for (uint64_t n = random() % 3; n > 0; --n)
        add(small, 1, size * static_cast<int64_t>(1 + random() % 3), 1,
            static_cast<uint64_t>(size));
    const RaggedPlan plan = plan_ragged(small.grids, static_cast<int>(ranks));
    ASSERT_EQ(plan.largest,
              std::max(ceil_div(small.elements, ranks), block_bound(small.grids, ranks)));
    ASSERT_EQ(plan.largest, small.grids.empty() ? 0 : best_of_all(small.blocks, ranks))
        << "round " << round;
  }
}

TEST(Ragged, StaysBetweenTheBestAndItsPromise) {
  std::mt19937_64 random(10);
  int optimal = 0;
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const size_t ranks = 2 + random() % 2;
    Small small;
    for (uint64_t n = 1 + random() % 3; n > 0; --n)
      add(small, 1 + static_cast<int64_t>(random() % 6), 1 + static_cast<int64_t>(random() % 6),
          2 + random() % 3, 2 + random() % 3);
    const RaggedPlan plan = plan_ragged(small.grids, static_cast<int>(ranks));
    const uint64_t best = best_of_all(small.blocks, ranks),
                   bound =
                       std::max(ceil_div(small.elements, ranks), block_bound(small.grids, ranks));
    uint64_t block = 0;
    for (const BlockGrid& grid : small.grids) block = std::max(block, grid.block());
    ASSERT_LE(bound, best);  // no assignment is below the bound
    ASSERT_LE(best, plan.largest);
    ASSERT_LE(plan.largest, bound + block);
    optimal += plan.largest == best;
  }
  EXPECT_GE(optimal, kRounds * 85 / 100);  // not always, as blocks of any size lie at the edges
}

// Many tensors of several block sizes on many ranks.
TEST(Ragged, LargeUnits) {
  std::mt19937_64 random(11);
  std::vector<ParamShape> params;
  for (int i = 0; i < 1000; ++i) {
    const auto rows = static_cast<int64_t>(32 * (1 + random() % 64)),
               columns = static_cast<int64_t>(32 * (1 + random() % 128));
    const uint64_t side = uint64_t{1} << (random() % 6);
    params.push_back({{rows, columns}, -1, side, side});
  }
  for (const int ranks : {64, 1000, 4096}) {
    const Layout layout = ragged(params, ranks);
    const auto total = static_cast<double>(layout.total());
    EXPECT_LE(static_cast<double>(layout.padding()) / total,
              static_cast<double>(layout.padding_bound()) / total + 0.01);
  }
}

TEST(Ragged, KnownPlan) {
  // There are five blocks of 4 elements, and 7 elements that can be cut anywhere. So each of three
  // ranks can have 9 of the 27 elements.
  const Layout layout = ragged({{{7}}, {{4, 5}, -1, 4, 1}}, 3);
  EXPECT_EQ(layout.largest_shard(), 9u);
  EXPECT_EQ(layout.padding(), 0u);
  EXPECT_EQ(layout.piece(0, 1).count, 8u);
  EXPECT_EQ(layout.piece(1, 1).begin, 8u);
  EXPECT_EQ(layout.piece(1, 1).count, 8u);
  EXPECT_EQ(layout.piece(2, 1).count, 4u);
  EXPECT_EQ(layout.piece(0, 0).count, 1u);
  EXPECT_EQ(layout.piece(2, 0).begin, 2u);
  EXPECT_EQ(layout.piece(2, 0).count, 5u);
  EXPECT_EQ(ragged({{{4, 8}, -1, 4, 8}}, 4).padding(), 96u);  // one block cannot be divided
  EXPECT_EQ(ragged({{{4, 8}, -1, 4, 8}}, 4).padding_bound(), 96u);
}

}  // namespace
}  // namespace fsccl::testing
