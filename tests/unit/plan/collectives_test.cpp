// Every plain collective is proved for every shape here: rank counts 1 to 16 and a sample up to 64, empty, tiny, odd and huge
// counts, in place or not, all roots.
#include <gtest/gtest.h>

#include <random>

#include "expected.h"

namespace fsccl::testing {
namespace {

constexpr int kRankCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64};

void verify_shape(const Collective& collective, const Shape& shape) {
  if (!applies(collective, shape)) return;
  const Status status = verify(for_all_ranks(collective.build, shape), collective.expect(shape));
  ASSERT_TRUE(status.ok()) << collective.name << ", ranks " << shape.ranks << ", count " << shape.count << " x "
                           << dtype_name(shape.dtype) << (shape.in_place ? ", in place" : "") << ", root " << shape.root << ": "
                           << status.text();
}

// Root only where it matters: every one up to 16 ranks, then first, middle and last.
std::vector<int> roots(const Collective& collective, int ranks) {
  if (!collective.rooted) return {0};
  if (ranks > 16) return {0, ranks / 2, ranks - 1};
  std::vector<int> all;
  for (int root = 0; root < ranks; ++root) all.push_back(root);
  return all;
}

class Collectives : public ::testing::TestWithParam<Collective> {};

TEST_P(Collectives, EveryShapeIsProved) {
  const Collective& collective = GetParam();
  // 24 bytes is what a signal carries: both sides of it are here for every element size.
  const uint64_t counts[] = {0, 1, 2, 3, 6, 7, 12, 24, 25, 333, 4096, (uint64_t{1} << 33) + 5};
  for (const int ranks : kRankCounts)
    for (const fsccl_dtype_t dtype : {FSCCL_UINT8, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
      for (const uint64_t count : counts)
        for (const bool in_place : {false, true})
          for (const int root : roots(collective, ranks)) {
            // Element size changes only where parts are cut and what fits a signal; in the large groups one size is enough.
            if ((ranks > 16 || collective.rooted) && count > 24 && dtype != FSCCL_FLOAT32) continue;
            if (collective.rooted && in_place) continue;
            ASSERT_NO_FATAL_FAILURE(verify_shape(collective, {0, ranks, count, dtype, root, in_place}));
          }
}
INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(kCollectives), [](const auto& param) { return param.param.name; });

// The plans of calls that are not in place must also be right when any of the ranks passes overlapping buffers: nobody knows that
// of its peers.
TEST_P(Collectives, AnyRanksMayCallInPlace) {
  const Collective& collective = GetParam();
  if (!collective.alias) return;
  std::mt19937_64 random(4);
  for (const int ranks : kRankCounts) {
    for (const uint64_t count : {0, 1, 7, 24, 333}) {
      for (int round = 0; round < (ranks <= 16 ? 8 : 2); ++round) {
        Shape shape{0, ranks, count, count == 24 ? FSCCL_UINT8 : FSCCL_FLOAT32, 0, false};
        if (!applies(collective, shape)) continue;
        std::vector<Alias> aliases;
        for (shape.rank = 0; shape.rank < ranks; ++shape.rank)
          if (round == 0 || random() % 2 == 0) aliases.push_back(collective.alias(shape));
        const Status status = verify(for_all_ranks(collective.build, shape), collective.expect(shape), aliases);
        ASSERT_TRUE(status.ok()) << "ranks " << ranks << ", count " << count << ", " << aliases.size()
                                 << " in place: " << status.text();
      }
    }
  }
}

TEST(Collectives, BarrierIsProved) {
  for (const int ranks : kRankCounts) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < ranks; ++rank) plans.push_back(barrier(rank, ranks));
    const Status status = verify(plans, {});
    ASSERT_TRUE(status.ok()) << status.text();
  }
}

TEST(Collectives, EmptyOnesOnlyEnter) {
  for (const Collective& collective : kCollectives) {
    const Plan plan = collective.build({2, 4, 0, FSCCL_FLOAT32, 0, false});
    ASSERT_EQ(plan.steps.size(), 2u) << collective.name;
    EXPECT_EQ(plan.steps[0].kind, StepKind::signal);
    EXPECT_EQ(plan.steps[1].kind, StepKind::wait);
    EXPECT_EQ(plan.steps[1].peer, kAllPeers);
    EXPECT_EQ(plan.ticks, 1);
  }
}

TEST(Collectives, OneRankWaitsForNobody) {
  for (const Collective& collective : kCollectives)
    for (const Step& step : collective.build({0, 1, 3, FSCCL_FLOAT32, 0, false}).steps)
      EXPECT_NE(step.kind, StepKind::wait) << collective.name;
}

TEST(Collectives, AllReducePartsAreWholeLinesAndEven) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const uint64_t count : {1, 16, 17, 333, 4096}) {
      uint64_t largest = 0, smallest = ~uint64_t{0}, sum = 0, end = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        uint64_t own = 0;
        for (const Step& step : all_reduce_direct({rank, ranks, count, FSCCL_FLOAT32, 0, false}).steps) {
          if (step.kind != StepKind::reduce) continue;
          EXPECT_EQ(step.dst.offset % 64, 0u);
          EXPECT_EQ(step.dst.offset, end);
          own = step.count;
          end = step.dst.offset + own * 4;
        }
        largest = std::max(largest, own);
        smallest = std::min(smallest, own);
        sum += own;
      }
      EXPECT_EQ(sum, count);
      EXPECT_LE(largest - smallest, 32u) << ranks << " ranks, " << count;  // a line, and the short tail
    }
  }
}

}  // namespace
}  // namespace fsccl::testing
