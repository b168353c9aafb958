// Tests the flows of a redistribution by a walk over every byte of small parameters. Every byte
// that a rank must hold comes to it once, from a rank that holds it, and all such ranks send equal
// parts.
#include "redistribute/redistribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/unit/layout/random_params.h"

namespace fsccl::testing {
namespace {

Layout make_layout(fsccl_layout_t kind, const std::vector<ParamShape>& params, int ranks) {
  auto made = Layout::make(kind, params, ranks);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

uint64_t bytes_of(const std::vector<Redistribution::Run>& runs) {
  return std::accumulate(runs.begin(), runs.end(), uint64_t{0},
                         [](uint64_t sum, const auto& run) { return sum + run.bytes; });
}

TEST(Redistribution, EveryByteComesOnceFromWhoHasIt) {
  std::mt19937_64 random(21);
  const fsccl_layout_t kinds[] = {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED};
  uint64_t moved = 0;
  for (int round = 0; round < 400; round++) {
    const auto params = random_params(random);
    const int old_ranks = 1 + static_cast<int>(random() % 5),
              new_ranks = 1 + static_cast<int>(random() % 5);
    Redistribution plan{make_layout(kinds[random() % 3], params, old_ranks),
                        make_layout(kinds[random() % 3], params, new_ranks),
                        {},
                        {}};
    for (size_t i = 0; i < params.size(); i++)
      for (uint64_t copies = random() % 3; copies > 0; copies--)
        plan.buffers.push_back({i, uint64_t{1} << random() % 4});
    const int ranks = std::max(old_ranks, new_ranks) + static_cast<int>(random() % 4);
    for (int rank = 0; rank < ranks; rank++)
      plan.members.push_back(
          {rank < old_ranks ? rank
                            : static_cast<int>(random() % static_cast<uint64_t>(old_ranks + 1)) - 1,
           rank < new_ranks ? new_ranks - 1 - rank : -1, random() % 2});
    EXPECT_TRUE(plan.not_held().empty());
    EXPECT_TRUE(plan.not_taken().empty());
    for (int taker = 0; taker < ranks; taker++) {
      const auto wanted = plan.members[static_cast<size_t>(taker)].takes;
      std::vector<std::vector<int>> came;  // how often each byte of each new piece came
      for (const auto& buffer : plan.buffers)
        came.emplace_back(
            wanted < 0 ? 0 : plan.to.piece(wanted, buffer.param).count * buffer.element_bytes);
      for (int giver = 0; giver < ranks; giver++)
        for (const auto& run : plan.runs(giver, taker)) {
          const auto& buffer = plan.buffers[run.buffer];
          const Piece old =
              plan.from.piece(plan.members[static_cast<size_t>(giver)].holds, buffer.param);
          const Piece piece = plan.to.piece(wanted, buffer.param);
          // The run lies at the same place in the parameter, and inside of the giver's piece.
          ASSERT_EQ(old.begin * buffer.element_bytes + run.from,
                    piece.begin * buffer.element_bytes + run.to);
          ASSERT_LE(run.from + run.bytes, old.count * buffer.element_bytes);
          ASSERT_LE(run.to + run.bytes, came[run.buffer].size());
          for (uint64_t at = run.to; at < run.to + run.bytes; at++) came[run.buffer][at]++;
          moved += run.bytes;
        }
      for (const auto& bytes : came)
        ASSERT_TRUE(std::all_of(bytes.begin(), bytes.end(), [](int times) { return times == 1; }))
            << "round " << round;
    }
  }
  EXPECT_GT(moved, 1'000'000u);
}

// There are 1000 bytes in two shards. Ranks 0, 2 and 3 hold the first shard, and rank 1 the second.
// Rank 1 wants everything: the holders of the first shard each send a third of it. If one of them
// wants everything, too, it keeps its own shard and gets only the second.
TEST(Redistribution, CopiesShareTheWork) {
  const std::vector<ParamShape> params = {{{1000}}};
  Redistribution plan{make_layout(FSCCL_LAYOUT_FLAT, params, 2),
                      make_layout(FSCCL_LAYOUT_FLAT, params, 1),
                      {{0, 1}},
                      {}};
  plan.members = {{0, -1}, {1, 0}, {0, -1}, {0, -1}};
  std::vector<uint64_t> given;
  for (int giver = 0; giver < 4; giver++) given.push_back(bytes_of(plan.runs(giver, 1)));
  EXPECT_EQ(given, (std::vector<uint64_t>{167, 500, 167, 166}));
  plan.members[2].takes = 0;  // rank 2 wants everything, too
  EXPECT_EQ(bytes_of(plan.runs(2, 2)), 500u);
  EXPECT_EQ(bytes_of(plan.runs(0, 2)), 0u);
  EXPECT_EQ(bytes_of(plan.runs(1, 2)), 500u);
}

TEST(Redistribution, OfTheSameHostFirst) {
  const std::vector<ParamShape> params = {{{90}}};
  Redistribution plan{make_layout(FSCCL_LAYOUT_FLAT, params, 1),
                      make_layout(FSCCL_LAYOUT_FLAT, params, 1),
                      {{0, 4}},
                      {}};
  plan.members = {{0, -1, 7}, {0, -1, 8}, {-1, 0, 8}, {-1, 0, 9}};
  EXPECT_EQ(bytes_of(plan.runs(0, 2)), 0u);
  EXPECT_EQ(bytes_of(plan.runs(1, 2)), 360u);
  EXPECT_EQ(bytes_of(plan.runs(0, 3)), 180u);  // no rank of rank 3's host holds the shard
  EXPECT_EQ(bytes_of(plan.runs(1, 3)), 180u);
}

TEST(Redistribution, WhatIsMissing) {
  const std::vector<ParamShape> params = {{{4, 2}}, {{1}}};
  Redistribution plan{make_layout(FSCCL_LAYOUT_PER_PARAM, params, 3),
                      make_layout(FSCCL_LAYOUT_PER_PARAM, params, 2),
                      {{0, 4}, {1, 4}},
                      {}};
  plan.members = {{1, 0}, {-1, -1}};  // shards are chunks of 2 rows, so shard 2 is empty
  EXPECT_EQ(plan.not_held(), std::vector<int>{0});
  EXPECT_EQ(plan.not_taken(), std::vector<int>{1});
  plan.buffers = {{1, 4}};
  EXPECT_EQ(plan.not_held(), std::vector<int>{0});
  EXPECT_TRUE(plan.not_taken().empty());
  plan.buffers.clear();
  EXPECT_TRUE(plan.not_held().empty());
}

}  // namespace
}  // namespace fsccl::testing
