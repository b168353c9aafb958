// Tests that plans of native steps are proved like all others, given what a native step promises.
// Plans that break a promise, or do not fit each other, are refused.
#include "plan/native_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expected.h"
#include "plan/describe.h"

namespace fsccl::testing {
namespace {

using Parts = std::vector<Shape::Part>;

Parts equal_parts(uint64_t count, int ranks) {
  Parts parts;
  for (uint64_t q = 0; q < static_cast<uint64_t>(ranks); q++) parts.push_back({q * count, count});
  return parts;
}

// Gives the parts of a call as comm/device/device_call.cpp makes them.
NativeShape native_shape(OpCode op, int rank, int ranks, uint64_t count, int root) {
  NativeShape shape{op, rank, ranks, root, FSCCL_FLOAT32, {}, {}};
  const Parts whole{{0, count}}, parts = equal_parts(count, ranks);
  const bool is_root = rank == root;
  switch (op) {
    case OpCode::all_gather:
      shape.sends = whole, shape.receives = parts;
      break;
    case OpCode::reduce_scatter:
      shape.sends = parts, shape.receives = whole;
      break;
    case OpCode::gather:
      shape.sends = whole, shape.receives = is_root ? parts : Parts{};
      break;
    case OpCode::scatter:
      shape.sends = is_root ? parts : Parts{}, shape.receives = whole;
      break;
    case OpCode::all_to_all:
      shape.sends = shape.receives = parts;
      break;
    case OpCode::reduce:
      shape.sends = whole, shape.receives = is_root ? whole : Parts{};
      break;
    case OpCode::broadcast:
      (is_root ? shape.sends : shape.receives) = whole;
      break;
    case OpCode::all_reduce:
      shape.sends = shape.receives = whole;
      break;
    default:
      break;
  }
  return shape;
}

std::vector<Expected> expectation(OpCode op, const Shape& shape) {
  switch (op) {
    case OpCode::all_gather:
      return expect_all_gather(shape);
    case OpCode::reduce_scatter:
      return expect_reduce_scatter(shape);
    case OpCode::gather:
      return expect_gather(shape);
    case OpCode::scatter:
      return expect_scatter(shape);
    case OpCode::all_to_all:
      return expect_all_to_all(shape);
    case OpCode::reduce:
      return expect_reduce(shape);
    case OpCode::broadcast:
      return expect_broadcast(shape);
    case OpCode::all_reduce:
      return expect_all_reduce(shape);
    default:
      return {};
  }
}

constexpr std::array kMoves{OpCode::all_gather, OpCode::gather, OpCode::scatter, OpCode::all_to_all,
                            OpCode::broadcast};
constexpr std::array kSums{OpCode::reduce_scatter, OpCode::reduce, OpCode::all_reduce};

struct Made {
  std::vector<Plan> plans;
  std::vector<Expected> expected;
};

Made made(OpCode op, int ranks, uint64_t count, const NativeMeans& means, bool any_order = false) {
  Made all;
  Shape shape;
  shape.ranks = ranks;
  shape.count = count;
  shape.dtype = FSCCL_FLOAT32;
  shape.root = ranks - 1;
  for (int rank = 0; rank < ranks; rank++)
    all.plans.push_back(native_plan(native_shape(op, rank, ranks, count, shape.root), means));
  all.expected = expectation(op, shape);
  for (Expected& one : all.expected) one.any_order = any_order;
  return all;
}

Status verdict(const Made& all) { return verify(all.plans, all.expected); }

TEST(NativePlans, EveryMeansMovesWhatIsToBeMoved) {
  for (const OpCode op : kMoves)
    for (const int ranks : {1, 2, 3, 8})
      for (const uint64_t count : {1u, 100u})
        for (const NativeAlgorithm by :
             {NativeAlgorithm::nccl, NativeAlgorithm::exchanged, NativeAlgorithm::staged}) {
          const Status status = verdict(made(op, ranks, count, {by}));
          EXPECT_TRUE(status.ok()) << op_name(op) << ranks << status.text();
        }
}

TEST(NativePlans, KernelAndHostSumInRankOrder) {
  for (const OpCode op : kSums)
    for (const int ranks : {1, 2, 3, 8})
      for (const uint64_t count : {1u, 1000u})
        for (const NativeAlgorithm by : {NativeAlgorithm::summed, NativeAlgorithm::staged}) {
          if (by == NativeAlgorithm::summed && op == OpCode::reduce) continue;
          const Status status = verdict(made(op, ranks, count, {by}));
          EXPECT_TRUE(status.ok()) << op_name(op) << ranks << status.text();
        }
}

TEST(NativePlans, NcclSumsInAnOrderOfItsOwn) {
  for (const OpCode op : kSums) {
    EXPECT_TRUE(verdict(made(op, 3, 100, {NativeAlgorithm::nccl}, true)).ok()) << op_name(op);
    EXPECT_THAT(verdict(made(op, 3, 100, {NativeAlgorithm::nccl})).text(),
                ::testing::HasSubstr("in any order"))
        << op_name(op);
  }
  NativeMeans by_hosts{NativeAlgorithm::staged};
  by_hosts.host_in_rank_order = false;
  EXPECT_FALSE(verdict(made(OpCode::all_reduce, 3, 100, by_hosts)).ok());
}

TEST(NativePlans, AnAverageThatIsLeftUndividedIsNoResult) {
  NativeMeans means{NativeAlgorithm::nccl};
  means.divides = true;
  for (const OpCode op : kSums) {
    Made all = made(op, 3, 100, means, true);
    EXPECT_TRUE(verdict(all).ok()) << verdict(all).text();
    for (Plan& plan : all.plans)
      std::erase_if(plan.steps, [](const Step& step) { return step.kind == StepKind::divide; });
    EXPECT_THAT(verdict(all).text(), ::testing::HasSubstr("undivided"));
    Made twice = made(op, 3, 100, {NativeAlgorithm::nccl}, true);
    const std::vector<Step> divide = {made(op, 3, 100, means, true).plans.back().steps.back()};
    twice.plans.back().steps.push_back(divide[0]);
    EXPECT_THAT(verdict(twice).text(), ::testing::HasSubstr("no sum that is to be divided"));
  }
}

TEST(NativePlans, StepsThatDoNotFitEachOtherAreRefused) {
  const auto refused = [](const char* what, const auto& damage) {
    Made all = made(OpCode::all_reduce, 3, 1000, {NativeAlgorithm::summed});
    EXPECT_TRUE(verdict(all).ok());
    damage(all.plans[1]);
    EXPECT_FALSE(verdict(all).ok()) << what;
  };
  refused("another means", [](Plan& plan) { plan.natives[1].by = NativeAlgorithm::exchanged; });
  refused("fewer elements", [](Plan& plan) { plan.natives[0].sends[2].count--; });
  refused("nothing for a peer", [](Plan& plan) { plan.natives[1].sends.pop_back(); });
  refused("two parts for a peer",
          [](Plan& plan) { plan.natives[1].sends.push_back(plan.natives[1].sends[0]); });
  refused("a peer that is not there", [](Plan& plan) { plan.natives[0].sends[0].peer = 3; });
  refused("another place", [](Plan& plan) { plan.natives[1].receives[0].offset += 4; });
  refused("beyond the buffer", [](Plan& plan) { plan.natives[0].sends[2].offset += 4000; });
  refused("another order", [](Plan& plan) { std::swap(plan.steps[0], plan.steps[1]); });
  refused("a step is missing", [](Plan& plan) { plan.steps.pop_back(); });
  refused("several places for a sum", [](Plan& plan) { plan.natives[0].receives[1].offset += 1; });
}

// Two ranks take two native steps in opposite order, so each waits for the other.
TEST(NativePlans, ADeadlockIsFound) {
  Made all = made(OpCode::all_gather, 2, 10, {NativeAlgorithm::nccl});
  for (Plan& plan : all.plans) {
    plan.ticks = 1;
    Step signal, wait;
    signal.kind = StepKind::signal, wait.kind = StepKind::wait;
    plan.steps.insert(plan.steps.begin(), {signal, wait});
  }
  EXPECT_THAT(verdict(all).text(), ::testing::HasSubstr("without ticks"));
}

// Each rank passes its part of the output as input, as fsccl.h allows it.
TEST(NativePlans, InPlaceIsRight) {
  for (const NativeAlgorithm by :
       {NativeAlgorithm::nccl, NativeAlgorithm::exchanged, NativeAlgorithm::staged}) {
    Made all = made(OpCode::all_gather, 3, 10, {by});
    std::vector<Alias> aliases;
    for (int rank = 0; rank < 3; rank++)
      aliases.push_back({rank, 0, 1, static_cast<uint64_t>(rank) * 40});
    EXPECT_TRUE(verify(all.plans, all.expected, aliases).ok());
    for (Alias& alias : aliases) alias.offset = (alias.offset + 40) % 120;
    EXPECT_FALSE(verify(all.plans, all.expected, aliases).ok()) << "the place of another part";
  }
}

TEST(NativePlans, ABarrierMeetsAllRanks) {
  Made all = made(OpCode::barrier, 3, 0, {NativeAlgorithm::nccl});
  EXPECT_TRUE(verdict(all).ok()) << verdict(all).text();
  all.plans[1].natives[0].is_barrier = false;
  EXPECT_FALSE(verdict(all).ok());
}

TEST(NativePlans, TheTextSaysWhatIsPromised) {
  const Plan plan = made(OpCode::all_reduce, 4, 1000, {NativeAlgorithm::summed}).plans[0];
  EXPECT_THAT(describe(plan), ::testing::AllOf(::testing::HasSubstr("all_reduce_summed"),
                                               ::testing::HasSubstr("by summed"),
                                               ::testing::HasSubstr("in rank order"),
                                               ::testing::HasSubstr("by nccl: move")));
}

}  // namespace
}  // namespace fsccl::testing
