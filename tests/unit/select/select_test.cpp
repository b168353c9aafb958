// Tests which plan the selection chooses on different machines, and that all ranks choose alike.
#include "select/select.h"

#include <gtest/gtest.h>

#include "comm/collective.h"
#include "select/stages.h"

namespace fsccl::testing {
namespace {

Shape shape_of(int ranks, uint64_t count) {
  Shape shape;
  shape.ranks = ranks;
  shape.count = count;
  shape.slot_bytes = 128 << 10;
  return shape;
}

SelectOptions machine() {
  SelectOptions options;
  options.costs.exchange = 100;
  options.costs.slot_cached.ns = {90, 280, 9500};
  options.costs.slot_streaming.ns = {400, 600, 17000};
  options.costs.read.ns = {2000, 2200, 14500};
  options.costs.copy_per_byte = 0.03;
  options.costs.can_read = true;
  return options;
}

std::string chosen(OpCode op, const Shape& shape, const SelectOptions& options) {
  std::vector<Candidate> considered;
  const Selection selection = select(op, shape, options, &considered);
  std::string text = selection.plan.name;
  if (!selection.fallback.steps.empty())
    text += " else " + (selection.reads ? std::string("read") : selection.fallback.name);
  size_t marked = 0;
  for (const Candidate& candidate : considered) marked += candidate.chosen;
  EXPECT_EQ(marked, selection.fallback.steps.empty() || shape.ranks == 1 ? 1u : 2u) << text;
  return text;
}

TEST(Select, BySize) {
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 4), machine()), "all_gather_inline");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), machine()), "all_gather_slots");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), machine()),
            "all_gather_direct else all_gather_slots");
  EXPECT_EQ(chosen(OpCode::barrier, shape_of(2, 0), machine()), "barrier");
}

TEST(Select, FollowsWhatWasMeasured) {
  SelectOptions options = machine();
  options.costs.slot_cached.ns = options.costs.slot_streaming.ns = {2000, 3000, 120000};
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), options),
            "all_gather_direct else read");
  // The direct plan of a broadcast writes to peers' memory, so without such access another plan
  // reads peers' memory.
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 1 << 20), options),
            "broadcast_balanced else broadcast_read");
  options.costs.can_write = true;
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 1 << 20), options),
            "broadcast_balanced else broadcast_balanced_read");
  EXPECT_EQ(chosen(OpCode::send, shape_of(2, 1 << 20), options),
            "broadcast_balanced else broadcast_read");
  options.costs.sharers = 2;
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 1 << 20), options),
            "broadcast_balanced else broadcast_read");
  options.costs.sharers = 1;
  EXPECT_EQ(chosen(OpCode::all_reduce, shape_of(2, 1 << 20), options),
            "all_reduce_direct else all_reduce_read");
  options.costs.can_read = false;
  EXPECT_EQ(chosen(OpCode::all_reduce, shape_of(2, 1 << 20), options),
            "all_reduce_direct else all_reduce_slots");
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 1 << 20), options),
            "broadcast_balanced else broadcast_slots");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), options),
            "all_gather_direct else all_gather_slots");
  options = machine();
  options.always_read = true;
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), options),
            "all_gather_direct else read");
}

// A slot has at least a line for each rank, however many ranks there are.
TEST(Select, ManyRanksSendThroughMirroredSlots) {
  for (const OpCode op : {OpCode::all_to_all, OpCode::reduce_scatter}) {
    Shape shape = shape_of(9000, 20);
    shape.dtype = FSCCL_FLOAT32;
    shape.slot_bytes = 9000 * 64;
    shape.mirrored = true;
    const Plan plan = select(op, shape, machine()).plan;
    EXPECT_EQ(uint64_t{plan.rounds} * static_cast<uint64_t>(plan.ticks), 2u) << plan.name;
    EXPECT_LE(plan.slots[0], shape.slot_bytes) << plan.name;
  }
}

// The same holds if there is no channel, and slots are only assumed, as for forecasts.
TEST(Select, ShapesOfManyRanksHaveLongSlots) {
  const GroupShape group{9000, 16 << 10, true, machine()};
  EXPECT_EQ(group.shape(20, FSCCL_FLOAT32).slot_bytes, 9000u * 64);
}

TEST(Select, EagerBytesForce) {
  SelectOptions options = machine();
  options.eager_bytes = 0;
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), options),
            "all_gather_direct else all_gather_slots");
  options.eager_bytes = 1 << 20;
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), options), "all_gather_slots");
}

// In a small all-reduce every rank reduces everything, which saves an exchange. In a large one the
// ranks share the work, which saves more.
TEST(Select, AllReduceBySizeAndRanks) {
  EXPECT_EQ(select(OpCode::all_reduce, shape_of(2, 512), machine()).plan.name,
            "all_reduce_small_slots");
  EXPECT_EQ(select(OpCode::all_reduce, shape_of(32, 64 << 10), machine()).fallback.name,
            "all_reduce_slots");
}

// A broadcast goes in smaller pieces than it must: its receivers copy while the root goes on.
TEST(Select, BroadcastOverlaps) {
  const Plan plan = select(OpCode::broadcast, shape_of(2, 128 << 10), machine()).fallback;
  EXPECT_GT(plan.rounds, 1u);
}

// A single broadcast takes 1.28 us in two pieces and 1.40 in one. In a row of broadcasts each takes
// as long as its receiver, 0.92 and 0.75 us, so one piece is chosen.
TEST(Select, BroadcastsInARowCountAsWell) {
  EXPECT_EQ(select(OpCode::broadcast, shape_of(2, 16 << 10), machine()).fallback.rounds, 1u);
}

// Pieces of a size that takes many rounds overlap sooner, but such a broadcast asks each time where
// the buffers lie, and a root cannot run ahead. These are the costs of an AMD EPYC of 2024.
TEST(Select, BroadcastsAskRarelyUpToHalfAMebibyte) {
  SelectOptions options = machine();
  options.costs.exchange = 71;
  options.costs.slot_cached.ns = {8, 75, 4682};
  options.costs.slot_streaming.ns = {348, 484, 12400};
  options.costs.copy_per_byte = 0.008;
  for (const uint64_t bytes : {16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10}) {
    const Selection selection = select(OpCode::broadcast, shape_of(2, bytes), options);
    EXPECT_EQ(selection.fallback.name, "broadcast_slots") << bytes;
    EXPECT_LE(selection.fallback.rounds, kMostRoundsUnasked) << bytes;
  }
  EXPECT_GT(select(OpCode::broadcast, shape_of(2, 4 << 20), options).fallback.rounds,
            kMostRoundsUnasked);
}

// A root may run ahead of its receivers, and would have to wait to ask where their buffers lie. A
// broadcast asks only where that saves much.
TEST(Select, BroadcastAtOnceForLongerThanAnAllGather) {
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 8 << 10), machine()), "broadcast_slots");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 8 << 10), machine()),
            "all_gather_direct else all_gather_slots");
  EXPECT_EQ(chosen(OpCode::broadcast, shape_of(2, 1 << 20), machine()),
            "broadcast_balanced else broadcast_slots");
}

// Between hosts a rank that sends alone fills an eighth of the call, but at least a turn, and at
// most a slot.
TEST(Select, ARankThatSendsAloneFillsLargerSlotsInLargerCalls) {
  const auto piece = [](OpCode op, uint64_t bytes) {
    Shape shape = shape_of(2, bytes);
    shape.slot_bytes = 2 << 20;
    shape.mirrored = true;
    return select(op, shape, machine()).plan.slots[0];
  };
  EXPECT_EQ(piece(OpCode::broadcast, 1 << 20), 512u << 10);
  EXPECT_EQ(piece(OpCode::broadcast, 8 << 20), 1u << 20);
  EXPECT_EQ(piece(OpCode::broadcast, 64 << 20), 2u << 20);
  EXPECT_EQ(piece(OpCode::all_gather, 64 << 20), 512u << 10);
  EXPECT_EQ(piece(OpCode::reduce_scatter, 64 << 20), 512u << 10);
}

// If each signal is a message, ranks of large groups pass small data on.
TEST(Select, InStepsWhereMessagesAreDear) {
  SelectOptions options = machine();
  options.costs.exchange = 10'000;
  options.costs.message = 3000;
  options.costs.by_messages = true;
  const auto at = [&](OpCode op, int ranks, uint64_t count) {
    Shape shape = shape_of(ranks, count);
    shape.mirrored = true;
    return chosen(op, shape, options);
  };
  EXPECT_EQ(at(OpCode::all_gather, 3, 8), "all_gather_inline");
  EXPECT_EQ(at(OpCode::all_gather, 16, 8), "all_gather_4_steps");
  EXPECT_EQ(at(OpCode::all_gather, 16, 1000), "all_gather_4_steps");
  EXPECT_EQ(at(OpCode::all_gather, 16, 64 << 10), "all_gather_slots");
  EXPECT_EQ(at(OpCode::all_reduce, 16, 1000), "all_reduce_4_steps");
  EXPECT_EQ(at(OpCode::barrier, 2, 0), "barrier");
  EXPECT_EQ(at(OpCode::barrier, 64, 0), "barrier_4_steps");
  EXPECT_EQ(chosen(OpCode::barrier, shape_of(64, 0), options), "barrier")
      << "a signal is a store there";
  options.signals_one = false;
  EXPECT_EQ(at(OpCode::all_gather, 16, 8), "all_gather_inline");
  EXPECT_EQ(at(OpCode::all_gather, 16, 1000), "all_gather_slots");
  EXPECT_EQ(at(OpCode::barrier, 64, 0), "barrier");
}

// No peer's buffer can be reached, so no direct plan is chosen or is a candidate.
TEST(Select, MirroredSlotsAreTheOnlyWay) {
  SelectOptions options = machine();
  options.always_read = true;
  for (const int64_t eager_bytes : {kConfigAuto, int64_t{0}})
    for (const OpCode op :
         {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce, OpCode::broadcast,
          OpCode::reduce, OpCode::gather, OpCode::scatter, OpCode::all_to_all}) {
      options.eager_bytes = eager_bytes;
      Shape shape = shape_of(4, 1 << 20);
      shape.mirrored = true;
      EXPECT_TRUE(chosen(op, shape, options).ends_with("_slots"));
      std::vector<Candidate> considered;
      const Selection selection = select(op, shape, options, &considered);
      EXPECT_TRUE(selection.plan.mirrored);
      EXPECT_FALSE(selection.reads);
      for (const Candidate& one : considered)
        EXPECT_TRUE(one.plan.ends_with("_slots") || one.plan.ends_with("_steps")) << one.plan;
    }
  Shape tiny = shape_of(4, 4);
  tiny.mirrored = true;
  EXPECT_EQ(chosen(OpCode::all_gather, tiny, options), "all_gather_inline");
}

// Between hosts each piece is a message. If one rank alone sends, it fills its slot. If all ranks
// send at once, each sends less before it reads.
TEST(Select, WhoSendsAloneFillsMirroredSlots) {
  for (const OpCode op : {OpCode::broadcast, OpCode::gather, OpCode::all_gather, OpCode::all_reduce,
                          OpCode::reduce_scatter}) {
    Shape shape = shape_of(2, 8 << 20);
    shape.slot_bytes = 1 << 20;
    shape.mirrored = true;
    const bool alone = op == OpCode::broadcast || op == OpCode::gather;
    const Plan plan = select(op, shape, machine()).plan;
    EXPECT_EQ(plan.slots[0], alone ? 1u << 20 : 512u << 10) << plan.name;
    EXPECT_EQ(plan.chunk, plan.slots[0]) << plan.name;
  }
}

SelectOptions ruled(const char* rules) {
  SelectOptions options = machine();
  options.rules =
      std::make_shared<const std::vector<Rule>>(parse_rules(rules, "FSCCL_PLAN").take());
  options.host_shape = {1, 2};
  return options;
}

TEST(Select, RulesAreFollowed) {
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), ruled("all_gather=slots/32K")),
            "all_gather_slots");
  EXPECT_EQ(
      select(OpCode::all_gather, shape_of(2, 1 << 20), ruled("all_gather=slots/32K")).plan.chunk,
      move_slots(all_gather_movement(shape_of(2, 1 << 20)), 32 << 10).chunk);
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), ruled("all_gather=direct")),
            "all_gather_direct else all_gather_slots");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), ruled("all_gather=read")),
            "all_gather_direct else read");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), ruled("all_gather:1K-1K=direct")),
            "all_gather_direct else all_gather_slots");
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), ruled("all_gather:1025-=direct")),
            "all_gather_slots")
      << "out of range";
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 512), ruled("all_gather@2x2=direct")),
            "all_gather_slots")
      << "other hosts";
  EXPECT_EQ(chosen(OpCode::all_reduce, shape_of(2, 1 << 20), ruled("all_reduce=small_slots")),
            "all_reduce_small_slots");
  EXPECT_EQ(chosen(OpCode::all_reduce, shape_of(2, 512), ruled("all_reduce=slots")),
            "all_reduce_slots");
  SelectOptions options = ruled("all_gather=slots");
  options.eager_bytes = 0;
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), options), "all_gather_slots")
      << "more precise than FSCCL_EAGER_BYTES";
}

TEST(Select, EveryCandidateCanBeForced) {
  for (const OpCode op :
       {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce, OpCode::broadcast,
        OpCode::reduce, OpCode::gather, OpCode::scatter, OpCode::all_to_all, OpCode::send})
    for (const auto& [mirrored, ranks, count] :
         {std::tuple{false, 2, 1u << 20}, {true, 2, 1u << 20}, {true, 16, 256u}}) {
      Shape shape = shape_of(ranks, count);
      shape.root = 0;
      shape.mirrored = mirrored;
      std::vector<Candidate> considered;
      select(op, shape, machine(), &considered);
      for (const Candidate& one : considered) {
        const std::string rule = fmt::format("{}={}{}", op_name(op), one.plan,
                                             one.chunk ? fmt::format("/{}", one.chunk) : "");
        std::vector<Candidate> again;
        const Selection forced = select(op, shape, ruled(rule.c_str()), &again);
        EXPECT_EQ(forced.why, "FSCCL_PLAN says so") << rule;
        const auto same = std::find_if(again.begin(), again.end(), [&](const Candidate& other) {
          return other.plan == one.plan && other.chunk == one.chunk;
        });
        ASSERT_NE(same, again.end()) << rule;
        EXPECT_TRUE(same->chosen) << rule;
      }
    }
}

TEST(Select, WhatCannotBeFollowedIsSaid) {
  Shape shape = shape_of(4, 1 << 20);
  shape.mirrored = true;
  std::vector<Candidate> considered;
  const Selection selection =
      select(OpCode::all_gather, shape, ruled("all_gather=direct"), &considered);
  EXPECT_EQ(selection.plan.name, "all_gather_slots");
  EXPECT_NE(selection.why.find("FSCCL_PLAN is not followed: these ranks share no memory"),
            std::string::npos)
      << selection.why;
  // Data is not passed on inside a host, nor if no slot holds it.
  for (const bool mirrored : {false, true}) {
    shape.mirrored = mirrored;
    EXPECT_NE(select(OpCode::all_gather, shape, ruled("all_gather=2_steps"), &considered)
                  .why.find("not followed: plans in steps"),
              std::string::npos);
  }
  SelectOptions blind = ruled("all_gather=read");
  blind.costs.can_read = false;
  EXPECT_EQ(chosen(OpCode::all_gather, shape_of(2, 1 << 20), blind),
            "all_gather_direct else all_gather_slots");
}

TEST(Select, PutsAreCountedAsBytes) {
  Shape shape = shape_of(3, 1000);
  shape.mirrored = true;
  uint64_t read = 0, written = 0;
  count_bytes(move_slots(all_gather_movement(shape), shape.slot_bytes), &read, &written);
  EXPECT_EQ(read, 5000u);  // two puts, a copy of the own part, and of two peers' parts
  EXPECT_EQ(written, 5000u);
}

TEST(Select, AllRanksAlike) {
  for (const bool mirrored : {false, true})
    for (const int ranks : {1, 2, 3, 5, 16})
      for (const uint64_t count : {0u, 1u, 100u, 5000u, 70'000u, 1u << 20})
        for (const OpCode op :
             {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce, OpCode::broadcast,
              OpCode::reduce, OpCode::gather, OpCode::scatter, OpCode::all_to_all}) {
          Shape shape = shape_of(ranks, count);
          shape.root = ranks - 1;
          shape.mirrored = mirrored;
          const Selection first = select(op, shape, machine());
          for (shape.rank = 1; shape.rank < ranks; shape.rank++) {
            const Selection other = select(op, shape, machine());
            ASSERT_EQ(first.plan.name, other.plan.name);
            ASSERT_EQ(first.plan.slots, other.plan.slots);
            ASSERT_EQ(first.fallback.name, other.fallback.name);
            ASSERT_EQ(first.fallback.chunk, other.fallback.chunk);
            ASSERT_EQ(first.fallback.rounds, other.fallback.rounds);
            ASSERT_EQ(first.fallback.slots, other.fallback.slots);
            ASSERT_EQ(first.reads, other.reads);
          }
        }
}

}  // namespace
}  // namespace fsccl::testing
