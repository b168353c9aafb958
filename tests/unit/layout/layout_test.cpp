// Tests the arithmetic of layouts: pieces tile parameters, cuts follow torch.chunk (per_param) or
// the flat rule, slots hold everything once.
#include "layout/layout.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "random_params.h"

namespace fsccl::testing {
namespace {

Layout make(fsccl_layout_t kind, std::vector<ParamShape> params, int ranks) {
  auto made = Layout::make(kind, std::move(params), ranks);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

uint64_t product(const std::vector<int64_t>& dims) {
  uint64_t product = 1;
  for (const int64_t dim : dims) product *= static_cast<uint64_t>(dim);
  return product;
}

class EveryLayout : public ::testing::TestWithParam<fsccl_layout_t> {};
INSTANTIATE_TEST_SUITE_P(Layouts, EveryLayout,
                         ::testing::Values(FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM,
                                           FSCCL_LAYOUT_RAGGED));

TEST_P(EveryLayout, PiecesTileEveryParameterOnce) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 60; ++round) {
    const auto params = random_params(random);
    for (int ranks = 1; ranks <= 64; ++ranks) {
      const Layout layout = make(GetParam(), params, ranks);
      uint64_t total = 0, largest = 0, held = 0;
      for (size_t i = 0; i < params.size(); ++i) {
        ASSERT_EQ(layout.numel(i), product(params[i].dims));
        ASSERT_EQ(layout.tied(i), params[i].tied_to >= 0);
        if (!layout.tied(i)) total += layout.numel(i);
        uint64_t next = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Piece piece = layout.piece(rank, i), owners = layout.piece(rank, layout.owner(i));
          ASSERT_EQ(piece.begin, owners.begin);
          ASSERT_EQ(piece.count, owners.count);
          if (piece.count == 0) continue;
          ASSERT_EQ(piece.begin, next);
          next += piece.count;
        }
        ASSERT_EQ(next, layout.numel(i)) << "parameter " << i << ", ranks " << ranks;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        held += layout.shard_total(rank);
        largest = std::max(largest, layout.shard_total(rank));
      }
      ASSERT_EQ(layout.total(), total);
      ASSERT_EQ(held, total);
      ASSERT_EQ(layout.largest_shard(), largest);
      ASSERT_EQ(layout.padding(), static_cast<uint64_t>(ranks) * largest - total);
      ASSERT_GE(layout.padding(), layout.padding_bound());
    }
  }
}

// A parameter that is alone in a layout has the same pieces as among other parameters.
TEST(Layout, OneParameterKeepsItsPieces) {
  const std::vector<ParamShape> params{{{7, 5}}, {{33}}, {{}}, {{3, 2, 4}}, {{128}}};
  for (const fsccl_layout_t kind : {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    for (const int ranks : {1, 2, 3, 7}) {
      const Layout whole = make(kind, params, ranks);
      for (size_t i = 0; i < params.size(); ++i) {
        const Layout one = whole.only(i);
        EXPECT_EQ(one.size(), 1u);
        EXPECT_EQ(one.total(), whole.numel(i));
        uint64_t largest = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          const Piece piece = one.piece(rank, 0), there = whole.piece(rank, i);
          EXPECT_EQ(piece.begin, there.begin) << i << " on " << rank;
          EXPECT_EQ(piece.count, there.count) << i << " on " << rank;
          largest = std::max(largest, piece.count);
        }
        if (kind != FSCCL_LAYOUT_FLAT) {
          EXPECT_EQ(one.largest_shard(), largest);
        }
      }
    }
}

// torch.chunk over dimension 0 makes chunks of ceil(rows / n) rows until none are left.
TEST(PerParam, CutsRowsLikeTorchChunk) {
  for (int64_t rows = 0; rows <= 40; ++rows) {
    for (int ranks = 1; ranks <= 64; ++ranks) {
      const Layout layout = make(FSCCL_LAYOUT_PER_PARAM, {{{rows, 3}}}, ranks);
      const int64_t chunk = (rows + ranks - 1) / ranks;
      int64_t left = rows;
      for (int rank = 0; rank < ranks; ++rank) {
        const int64_t mine = std::min(chunk, left);
        left -= mine;
        ASSERT_EQ(layout.piece(rank, 0).count, static_cast<uint64_t>(3 * mine))
            << rows << " rows, rank " << rank << " of " << ranks;
      }
    }
  }
}

TEST(PerParam, KnownCuts) {
  // The first parameter has chunks of 2, 2, 1 and 0 rows.
  const Layout layout = make(FSCCL_LAYOUT_PER_PARAM, {{{5, 2}}, {{}}, {{2}}}, 4);
  EXPECT_EQ(layout.piece(0, 0).count, 4u);
  EXPECT_EQ(layout.piece(2, 0).begin, 8u);
  EXPECT_EQ(layout.piece(2, 0).count, 2u);
  EXPECT_EQ(layout.piece(3, 0).count, 0u);
  EXPECT_EQ(layout.piece(0, 1).count, 1u);  // a scalar is one row
  EXPECT_EQ(layout.piece(1, 1).count, 0u);
  EXPECT_EQ(layout.piece(1, 2).count, 1u);
  EXPECT_EQ(layout.shard_total(0), 6u);
  EXPECT_EQ(layout.padding(), 4u * 6 - 13);
  EXPECT_EQ(layout.padding_bound(), 4u * 4 - 13);  // one rank holds two of five rows of two
}

TEST(Flat, CutsInsideParameters) {
  // There are 5 + 6 + 1 = 12 elements, so each rank has 4.
  const Layout layout = make(FSCCL_LAYOUT_FLAT, {{{5}}, {{2, 3}}, {{5}, 0}, {{}}}, 3);
  EXPECT_EQ(layout.total(), 12u);
  EXPECT_EQ(layout.piece(0, 0).count, 4u);
  EXPECT_EQ(layout.piece(1, 0).begin, 4u);
  EXPECT_EQ(layout.piece(1, 0).count, 1u);
  EXPECT_EQ(layout.piece(1, 1).count, 3u);
  EXPECT_EQ(layout.piece(2, 1).begin, 3u);
  EXPECT_EQ(layout.piece(2, 3).count, 1u);
  EXPECT_EQ(layout.padding(), 0u);
  EXPECT_EQ(make(FSCCL_LAYOUT_FLAT, {{{13}}}, 4).padding(), 3u);  // 4 elements for each rank
}

TEST(Flat, PartsAreEqualButTheTail) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 200; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 64);
    const Layout layout = make(FSCCL_LAYOUT_FLAT, random_params(random), ranks);
    const uint64_t part =
        (layout.total() + static_cast<uint64_t>(ranks) - 1) / static_cast<uint64_t>(ranks);
    uint64_t left = layout.total();
    for (int rank = 0; rank < ranks; ++rank) {
      ASSERT_EQ(layout.shard_total(rank), std::min(part, left));
      left -= layout.shard_total(rank);
    }
  }
}

TEST_P(EveryLayout, SlotsHoldEverythingOnce) {
  std::mt19937_64 random(3);
  for (int round = 0; round < 500; ++round) {
    const auto params = random_params(random);
    const Layout layout = make(GetParam(), params, 1 + static_cast<int>(random() % 64));
    std::vector<size_t> size;
    for (size_t i = 0; i < params.size(); ++i)
      size.push_back(std::vector<size_t>{0, 1, 2, 4, 8}[random() % 5]);
    const SlotMap map = make_slot_map(layout, size, 64);
    EXPECT_EQ(map.bytes % 64, 0u);
    uint64_t end = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      const size_t own = layout.owner(i);
      if (layout.tied(i)) {
        EXPECT_EQ(map.offset[i], map.offset[own]);
      } else if (size[i] == 0) {
        EXPECT_EQ(map.offset[i], SlotMap::kAbsent);
      } else {
        EXPECT_GE(map.offset[i], end);
        EXPECT_LT(map.offset[i] - end, 64u);
        EXPECT_EQ(map.offset[i] % (GetParam() == FSCCL_LAYOUT_FLAT ? size[i] : 64), 0u);
        end = map.offset[i] + layout.numel(i) * size[i];
      }
    }
    EXPECT_GE(map.bytes, end);
    EXPECT_LT(map.bytes - end, 64u);
    EXPECT_EQ(map.slots, std::vector<uint64_t>{map.bytes});
    const SlotMap each = make_slots_by_parameter(layout, size, 64);
    uint64_t sum = 0;
    for (size_t i = 0; i < params.size(); ++i) {
      const bool present = size[layout.owner(i)] != 0;
      EXPECT_EQ(each.offset[i], present ? 0 : SlotMap::kAbsent);
      EXPECT_EQ(each.slots[i], layout.tied(i) ? 0 : (layout.numel(i) * size[i] + 63) / 64 * 64);
      sum += each.slots[i];
    }
    EXPECT_EQ(each.bytes, sum);
  }
}

TEST(Flat, OneElementSizeLeavesNoGaps) {
  const Layout layout = make(FSCCL_LAYOUT_FLAT, {{{3}}, {{5}}, {{7}}}, 2);
  const SlotMap map = make_slot_map(layout, {2, 2, 2});
  EXPECT_EQ(map.offset, (std::vector<uint64_t>{0, 6, 16}));
  EXPECT_EQ(map.bytes, 64u);
}

TEST(Layout, RefusesWhatItCannotHold) {
  const auto refused = [](fsccl_layout_t kind, std::vector<ParamShape> params, int ranks,
                          const char* part) {
    const auto made = Layout::make(kind, std::move(params), ranks);
    ASSERT_FALSE(made.ok()) << part;
    EXPECT_EQ(made.status().code(), FSCCL_ERR_INVALID_ARGUMENT);
    EXPECT_NE(made.status().text().find(part), std::string::npos) << made.status().text();
  };
  const int64_t huge = int64_t{1} << 62;
  refused(static_cast<fsccl_layout_t>(3), {}, 1, "layout 3");
  refused(FSCCL_LAYOUT_FLAT, {}, 0, "0 ranks");
  refused(FSCCL_LAYOUT_FLAT, {{{4, -1}}}, 2, "a dimension is -1");
  refused(FSCCL_LAYOUT_FLAT, {{{-1, 0}}}, 2, "a dimension is -1");
  refused(FSCCL_LAYOUT_FLAT, {{{huge, huge}}}, 2, "2^58");
  refused(FSCCL_LAYOUT_FLAT, {{{int64_t{1} << 58}}, {{1}}}, 2, "2^58");
  refused(FSCCL_LAYOUT_FLAT, {{{4}, 0}}, 2, "tied to 0");
  refused(FSCCL_LAYOUT_FLAT, {{{4}, 1}, {{4}}}, 2, "tied to 1");
  refused(FSCCL_LAYOUT_FLAT, {{{4}}, {{4}, -2}}, 2, "tied to -2");
  refused(FSCCL_LAYOUT_FLAT, {{{4}}, {{4}, 0}, {{4}, 1}}, 2, "itself tied");
  refused(FSCCL_LAYOUT_FLAT, {{{4}}, {{2, 2}, 0}}, 2, "dimensions differ");
  refused(FSCCL_LAYOUT_RAGGED, {{{4}, -1, 0, 2}, {{4}, 0, 0, 4}}, 2, "blocks differ");
  refused(FSCCL_LAYOUT_PER_PARAM, {{{4, 4}, -1, 2, 2}}, 2, "RAGGED");
  refused(FSCCL_LAYOUT_FLAT, {{{4, 4}, -1, 1, 4}}, 2, "1 x 4");
}

TEST(Layout, EmptyDimensionsMakeEmptyParameters) {
  const int64_t huge = int64_t{1} << 62;
  for (const fsccl_layout_t kind :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED}) {
    const Layout layout = make(kind, {{{huge, huge, 0}}, {{0, 5}}}, 3);
    EXPECT_EQ(layout.total(), 0u);
    EXPECT_EQ(layout.padding(), 0u);
    for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(layout.piece(rank, 0).count, 0u);
  }
  EXPECT_EQ(make(FSCCL_LAYOUT_FLAT, {}, 3).total(), 0u);
}

}  // namespace
}  // namespace fsccl::testing
