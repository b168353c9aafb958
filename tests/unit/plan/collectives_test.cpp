// Proves the plans of every plain collective, for rank counts 1 to 17 and a sample up to 64, for
// empty, tiny, odd and large counts, for parts of equal and of different sizes, with some or all
// ranks in place, and for all roots. The tests whose names say MoreRanks take most of the time and
// run in a test of their own (meson.build).
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <span>

#include "expected.h"

namespace fsccl::testing {
namespace {

constexpr int kRankCounts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17};
constexpr int kMoreRankCounts[] = {10, 11, 12, 13, 14, 15, 24, 33, 64};

Shape shape_of(int ranks, uint64_t count, fsccl_dtype_t dtype, int root = 0) {
  Shape shape;
  shape.ranks = ranks;
  shape.count = count;
  shape.dtype = dtype;
  shape.root = root;
  return shape;
}

void verify_shape(const Collective& collective, const Shape& shape,
                  const std::vector<Alias>& aliases = {}) {
  if (!applies(collective, shape)) return;
  const Status status =
      verify(for_all_ranks(collective.build, shape), collective.expect(shape), aliases);
  ASSERT_TRUE(status.ok()) << collective.name << ", ranks " << shape.ranks << ", count "
                           << shape.count << " x " << dtype_name(shape.dtype) << ", root "
                           << shape.root << ", " << aliases.size()
                           << " in place: " << status.text();
}

// Returns the roots to try, if the collective has a root: every one up to 8 ranks, then first,
// middle and last.
std::vector<int> roots(const Collective& collective, int ranks) {
  if (!collective.rooted) return {0};
  if (ranks > 8) return {0, ranks / 2, ranks - 1};
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

class Collectives : public ::testing::TestWithParam<Collective> {};

void prove_every_shape(const Collective& collective, std::span<const int> rank_counts) {
  // A signal carries 24 bytes, and a slot has 4096. For every element size some counts lie below
  // each of these limits, and some above.
  const uint64_t counts[] = {0, 1, 2, 3, 6, 7, 12, 24, 25, 333, 4096, 4097, 20'000};
  for (const int ranks : rank_counts)
    for (const fsccl_dtype_t dtype : {FSCCL_UINT8, FSCCL_BFLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
      for (const uint64_t count : counts)
        for (const int root : roots(collective, ranks)) {
          // The element size changes only where parts are cut and what fits into a signal, so in
          // large groups one size is enough.
          const bool large = ranks > 16 && collective.fits == Fits::any;
          if ((((ranks > 8 || collective.rooted) && count > 24) || large) && dtype != FSCCL_FLOAT32)
            continue;
          if (count > (ranks <= 16 ? 20'000 : ranks <= 33 ? 4096 : 333)) continue;
          ASSERT_NO_FATAL_FAILURE(verify_shape(collective, shape_of(ranks, count, dtype, root)));
        }
}

TEST_P(Collectives, EveryShapeIsProved) { prove_every_shape(GetParam(), kRankCounts); }
TEST_P(Collectives, EveryShapeIsProvedForMoreRanks) {
  prove_every_shape(GetParam(), kMoreRankCounts);
}

TEST_P(Collectives, PartsOfAnySizeAndPlaceAreProved) {
  const Collective& collective = GetParam();
  if (!collective.parts) return;
  std::mt19937_64 random(11);
  for (const int ranks : {1, 2, 3, 5, 8, 17})
    for (int round = 0; round < 30; ++round) {
      Shape shape = shape_of(ranks, 0, round % 2 ? FSCCL_FLOAT32 : FSCCL_UINT8,
                             static_cast<int>(random() % static_cast<uint64_t>(ranks)));
      const uint64_t most = round % 3 == 0 ? 6 : round % 3 == 1 ? 300 : 5000;
      uint64_t begin = 0;
      for (int q = 0; q < ranks; ++q) {
        shape.counts.push_back(random() % 4 == 0 ? 0 : random() % most);
        begin += round % 5 == 0 ? random() % 9 : 0;
        shape.displacements.push_back(begin);
        begin += shape.counts.back();
      }
      shape.count = std::accumulate(shape.counts.begin(), shape.counts.end(), uint64_t{0});
      ASSERT_NO_FATAL_FAILURE(verify_shape(collective, shape));
    }
}

void prove_calls_in_place(const Collective& collective, std::span<const int> rank_counts) {
  if (!collective.alias) return;
  std::mt19937_64 random(4);
  for (const int ranks : rank_counts)
    for (const uint64_t count : {0, 1, 7, 24, 333, 9000})
      for (int round = 0; round < (ranks <= 16 ? 8 : 2); ++round) {
        if (ranks > 8 && count > 333) continue;
        Shape shape = shape_of(ranks, count, count == 24 ? FSCCL_UINT8 : FSCCL_FLOAT32,
                               static_cast<int>(random() % static_cast<uint64_t>(ranks)));
        std::vector<Alias> aliases;
        for (shape.rank = 0; shape.rank < ranks; ++shape.rank)
          if ((round == 0 || random() % 2 == 0) &&
              (!collective.root_alone || shape.rank == shape.root))
            aliases.push_back(collective.alias(shape));
        ASSERT_NO_FATAL_FAILURE(verify_shape(collective, shape, aliases));
      }
}

// No rank knows of its peers whether they run in place, so any of them may.
TEST_P(Collectives, AnyRanksMayCallInPlace) { prove_calls_in_place(GetParam(), kRankCounts); }
TEST_P(Collectives, AnyRanksMayCallInPlaceOfMoreRanks) {
  prove_calls_in_place(GetParam(), kMoreRankCounts);
}

INSTANTIATE_TEST_SUITE_P(All, Collectives, ::testing::ValuesIn(collectives()),
                         [](const auto& param) { return param.param.name; });

TEST(Collectives, BarrierIsProved) {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < ranks; ++rank) plans.push_back(barrier(rank, ranks));
    const Status status = verify(plans, {});
    ASSERT_TRUE(status.ok()) << status.text();
  }
}

TEST(Collectives, OneRankWaitsForNobody) {
  for (const Collective& collective : collectives())
    for (const Step& step : collective.build(shape_of(1, 3, FSCCL_FLOAT32)).steps)
      EXPECT_TRUE(step.kind != StepKind::wait && step.kind != StepKind::choose) << collective.name;
}

// In a job of this size nothing may take memory or time for each pair of ranks.
TEST(Collectives, APlanGrowsWithTheRanksNotTheirPairs) {
  constexpr int kRanks = 100'000;
  constexpr uint64_t kSlot = 64 * kRanks;
  std::vector<Plan> plans{barrier(5, kRanks)};
  Shape shape = shape_of(kRanks, 100, FSCCL_FLOAT32);
  shape.rank = 5;
  for (const auto movement : {all_gather_movement, gather_movement, scatter_movement,
                              all_to_all_movement, broadcast_movement}) {
    plans.push_back(move_direct(movement(shape)));
    plans.push_back(move_slots(movement(shape), kSlot));
  }
  for (const auto reduction :
       {reduction_of_reduce_scatter, reduction_of_all_reduce, reduction_of_reduce}) {
    plans.push_back(reduce_direct(reduction(shape)));
    plans.push_back(reduce_slots(reduction(shape), kSlot));
  }
  plans.push_back(broadcast_balanced(shape));
  plans.push_back(broadcast_read(shape));
  plans.push_back(broadcast_balanced_read(shape));
  plans.push_back(all_reduce_read(shape));
  for (const Plan& plan : plans) EXPECT_LE(plan.steps.size(), 3u * kMaxTicks * kRanks) << plan.name;
}

// In a large broadcast all ranks move the same number of bytes.
TEST(Collectives, BroadcastIsBalanced) {
  for (const int ranks : {2, 3, 4, 8}) {
    uint64_t least = ~uint64_t{0}, most = 0;
    for (const Plan& plan :
         for_all_ranks(broadcast_balanced, shape_of(ranks, 1 << 20, FSCCL_UINT8))) {
      uint64_t moved = 0;
      for (const Step& step : plan.steps)
        if (step.kind == StepKind::copy) moved += step.count;
      least = std::min(least, moved);
      most = std::max(most, moved);
    }
    EXPECT_LE(most - least, 64u * static_cast<uint64_t>(ranks));
  }
}

// A rank that sends and receives fills several slots before it empties the first of a peer. A rank
// that only sends has nothing to put off.
TEST(Collectives, SlotsAreWrittenAheadOfWhatIsRead) {
  constexpr uint64_t kSlot = 4096;
  const auto written_ahead = [](const Plan& plan) {
    const auto is_read = [&](const Step& step) {
      return step.kind == StepKind::copy && step.src.rank != plan.rank;
    };
    return std::count_if(plan.steps.begin(),
                         std::find_if(plan.steps.begin(), plan.steps.end(), is_read),
                         [&](const Step& step) {
                           return step.kind == StepKind::copy && plan.buffers[step.dst.buffer].slot;
                         });
  };
  for (const uint64_t slots : {1, 2, 3, 4, 5, 9}) {
    Shape shape = shape_of(2, slots * kSlot, FSCCL_UINT8);
    const Plan gather = move_slots(all_gather_movement(shape), kSlot),
               broadcast = move_slots(broadcast_movement(shape), kSlot);
    const uint64_t ticks = std::min<uint64_t>(slots, kMaxTicks);
    EXPECT_EQ(static_cast<uint64_t>(gather.ticks), ticks);
    EXPECT_EQ(static_cast<uint64_t>(written_ahead(gather)), ticks);
    EXPECT_EQ(gather.rounds, (slots + ticks - 1) / ticks);
    EXPECT_EQ(broadcast.ticks, 1);
    EXPECT_EQ(broadcast.rounds, slots);
  }
}

// Between hosts a signal is a message. A rank that only receives gives one a round, and a round is
// several slots.
TEST(Collectives, WhoOnlyReceivesSignalsOnceForSeveralMirroredSlots) {
  constexpr uint64_t kSlot = 4096;
  const auto count = [](const Plan& plan, StepKind kind) {
    return std::count_if(plan.steps.begin(), plan.steps.end(),
                         [&](const Step& step) { return step.kind == kind; });
  };
  for (const uint64_t slots : {1, 2, 4, 5, 9}) {
    Shape shape = shape_of(2, slots * kSlot, FSCCL_UINT8);
    shape.mirrored = true;
    const auto ticks = static_cast<int>(std::min<uint64_t>(slots, kMaxTicks));
    const Plan root = move_slots(broadcast_movement(shape), kSlot);
    shape.rank = 1;
    const Plan receiver = move_slots(broadcast_movement(shape), kSlot);
    EXPECT_EQ(root.ticks, ticks);
    EXPECT_EQ(count(root, StepKind::signal), ticks);
    EXPECT_EQ(count(root, StepKind::put), ticks);
    EXPECT_EQ(count(receiver, StepKind::signal), 1);
    EXPECT_EQ(count(receiver, StepKind::copy), ticks);
    EXPECT_EQ(receiver.rounds, (slots + kMaxTicks - 1) / kMaxTicks);
  }
}

TEST(Collectives, BarriersInStepsAreProved) {
  for (const int ranks : kRankCounts)
    for (int steps = 1; steps <= kMaxTicks; ++steps) {
      std::vector<Plan> plans;
      for (int rank = 0; rank < ranks; ++rank)
        plans.push_back(barrier_in_steps(rank, ranks, steps));
      const Status status = verify(plans, {});
      ASSERT_TRUE(status.ok()) << status.text();
    }
}

// The plans in steps send few messages, and each contains only bytes that its receiver lacks.
TEST(Collectives, StepsTakeFewMessagesAndNoByteTwice) {
  const auto total = [](const std::vector<Plan>& plans, StepKind kind, auto what) {
    uint64_t sum = 0;
    for (const Plan& plan : plans)
      for (const Step& step : plan.steps) sum += step.kind == kind ? what(step) : 0;
    return sum;
  };
  struct Case {
    int ranks, steps;
    uint64_t messages;  // messages of a rank
  };
  for (const Case& one : {Case{4, 2, 2},
                          {5, 3, 3},
                          {9, 2, 4},
                          {16, 4, 4},
                          {16, 3, 5},
                          {16, 2, 6},
                          {64, 3, 9},
                          {16, 1, 15}}) {
    const auto plans =
        for_all_ranks([&](const Shape& shape) { return all_gather_in_steps(shape, one.steps); },
                      shape_of(one.ranks, 7, FSCCL_FLOAT32));
    const auto ranks = static_cast<uint64_t>(one.ranks);
    EXPECT_EQ(total(plans, StepKind::signal, [](const Step&) { return 1u; }), ranks * one.messages)
        << one.ranks << " " << one.steps;
    EXPECT_EQ(total(plans, StepKind::put, [](const Step& step) { return step.count; }),
              7 * ranks * (ranks - 1));
  }
}

TEST(Collectives, AllReducePartsAreWholeLinesAndEven) {
  for (int ranks = 1; ranks <= 16; ++ranks) {
    for (const uint64_t count : {1, 16, 17, 333, 4096}) {
      uint64_t largest = 0, smallest = ~uint64_t{0}, end = 0;
      for (const Shape::Part& part :
           reduction_of_all_reduce(shape_of(ranks, count, FSCCL_FLOAT32)).parts) {
        if (part.count) {
          EXPECT_EQ(part.begin * 4 % 64, 0u);
          EXPECT_EQ(part.begin, end);
          end = part.begin + part.count;
        }
        largest = std::max(largest, part.count);
        smallest = std::min(smallest, part.count);
      }
      EXPECT_EQ(end, count);
      // Parts differ by at most one line, apart from the short end of the last one.
      EXPECT_LE(largest - smallest, 32u) << ranks << " ranks, " << count;
    }
  }
}

}  // namespace
}  // namespace fsccl::testing
