// Tests the cost model with plans whose time can be computed by hand.
#include "plan/cost.h"

#include <gtest/gtest.h>

#include <limits>

#include "plan/collectives.h"

namespace fsccl::testing {
namespace {

// Returns costs with round numbers. A byte through a slot takes 2 ns, one for each of its two
// copies. An exchange takes 1000 ns. Copies between mapped memory take 0.5 ns a byte.
Costs round_numbers() {
  Costs costs;
  costs.exchange = 1000;
  costs.slot_cached.ns = {512, 4096, 262144};
  costs.slot_streaming.ns = {1e9, 1e9, 1e9};
  costs.read.ns = {3256, 5048, 134072};  // 3000 ns and 1 ns a byte
  costs.copy_per_byte = 0.5;
  costs.can_read = true;
  return costs;
}

std::array<Plan, 2> pair_of(Plan (*make)(const Shape&, uint64_t), uint64_t bytes,
                            uint64_t slot_bytes) {
  Shape shape;
  shape.ranks = 2;
  shape.count = bytes;
  std::array<Plan, 2> plans;
  for (int rank = 0; rank < 2; rank++) {
    shape.rank = rank;
    plans[static_cast<size_t>(rank)] = make(shape, slot_bytes);
  }
  return plans;
}
Plan gather_slots(const Shape& shape, uint64_t slot) {
  return move_slots(all_gather_movement(shape), slot);
}
Plan gather_direct(const Shape& shape, uint64_t) { return move_direct(all_gather_movement(shape)); }
Plan broadcast_slots(const Shape& shape, uint64_t slot) {
  return move_slots(broadcast_movement(shape), slot);
}

TEST(Cost, StraightLinesBetweenAndBeyondTheMeasuredSizes) {
  const Cost cost{{100, 1892, 130916}};
  EXPECT_DOUBLE_EQ(cost.at(256), 100);
  EXPECT_DOUBLE_EQ(cost.at(1152), 996);
  EXPECT_DOUBLE_EQ(cost.at(2048), 1892);
  EXPECT_DOUBLE_EQ(cost.at(131072 + 1000), 131916);
  EXPECT_DOUBLE_EQ(cost.at(0), 0);  // never negative
}

TEST(Cost, AllGatherThroughSlots) {
  // 10 KiB are copied into the slot, this rank's own part goes to its place, the other's signal
  // comes, and the other's part is copied out of its slot.
  EXPECT_NEAR(price(pair_of(gather_slots, 10240, 65536), round_numbers(), false).ns,
              10240 + 5120 + 1000 + 10240, 100);
}

// Between hosts each message to or from a peer takes time of its own. Two of them are part of the
// price of an exchange.
TEST(Cost, MessagesToManyTakeLongerThanStepsOfFew) {
  Costs costs = round_numbers();
  costs.exchange = 5000;
  costs.message = 2000;
  costs.by_messages = true;
  const auto of = [&](int ranks, int steps) {
    return price({barrier_in_steps(0, ranks, steps), barrier_in_steps(1, ranks, steps)}, costs,
                 false)
        .ns;
  };
  for (const int ranks : {2, 3, 16})
    EXPECT_DOUBLE_EQ(of(ranks, 1), 5000 + (ranks - 2) * 2 * 2000.0) << ranks;
  EXPECT_DOUBLE_EQ(of(16, 4), 4 * 5000);
  EXPECT_DOUBLE_EQ(of(16, 2), 2 * (5000 + 2 * 2 * 2000));
  EXPECT_DOUBLE_EQ(price({barrier(0, 16), barrier(1, 16)}, costs, false).ns, of(16, 1));
}

// A message usually has arrived when a rank waits for it, so such waits are cheap. In shared memory
// a wait fetches a line from another core, and ranks that share a core give it up in each wait:
// there each wait costs an exchange, and plans with fewer waits are cheaper.
TEST(Cost, EachWaitTakesAnExchangeInSharedMemoryAndWhereRanksShareCores) {
  const auto gather = pair_of(gather_slots, 100'000, 4096);
  const auto of = [&](bool messages, double sharers) {
    Costs costs = round_numbers();
    costs.by_messages = messages;
    costs.sharers = sharers;
    return price(gather, costs, false).ns;
  };
  const double by_message = of(true, 1), more = 10 * round_numbers().exchange;
  EXPECT_GT(of(false, 1), by_message + more);
  EXPECT_GT(of(true, 2), by_message + more);
}

// Reads by the system take longer than slots do, but need no exchanges. So between ranks that share
// cores the time of the copies grows with the ranks, and that of the exchange does not.
TEST(Cost, WhatARankDoesTakesLongerWhereRanksShareCores) {
  const auto of = [](double sharers) {
    Costs costs = round_numbers();
    costs.sharers = sharers;
    return price(pair_of(gather_direct, 102400, 0), costs, true);
  };
  EXPECT_DOUBLE_EQ(of(4).ns - of(3).ns, of(3).ns - of(2).ns);
  EXPECT_GT(of(3).ns, 2 * of(1).ns);
  EXPECT_LT(of(3).ns, 3 * of(1).ns) << "an exchange takes what it takes";
}

TEST(Cost, NobodyIsBusyForLongerThanItTakes) {
  Costs costs = round_numbers();
  costs.by_messages = true;
  costs.sharers = 2;
  costs.message = 400;
  const Price found = price(pair_of(gather_slots, 100'000, 4096), costs, false);
  EXPECT_LE(found.busy, found.ns);
}

TEST(Cost, PutsCostWhatCopiesIntoASlotDo) {
  const auto mirrored = [](const Shape& given, uint64_t slot) {
    Shape shape = given;
    shape.mirrored = true;
    return gather_slots(shape, slot);
  };
  EXPECT_DOUBLE_EQ(price(pair_of(mirrored, 10240, 65536), round_numbers(), false).ns,
                   price(pair_of(gather_slots, 10240, 65536), round_numbers(), false).ns);
}

// Beyond the caches a read by the system takes 1.5 times as long, because the system first fetches
// the lines that it overwrites. Copies between mapped memory store past the caches.
TEST(Cost, WhatTheSystemReadsTakesLongerPastTheCaches) {
  const auto read = [](uint64_t bytes) {
    return price(pair_of(gather_direct, bytes, 0), round_numbers(), true).ns;
  };
  const uint64_t few = 1 << 20, many = 4 << 20;
  EXPECT_NEAR(read(few), 0.5 * few + 1000 + 3000 + few + 1000, 100);
  EXPECT_NEAR(read(many), 0.5 * many + 1000 + 1.5 * (3000 + many) + 1000, 100);
  EXPECT_NEAR(price(pair_of(gather_direct, many, 0), round_numbers(), false).ns,
              0.5 * many + 1000 + 0.5 * many + 1000, 100);
}

// The same holds if only the other rank moves bytes: in broadcast_read the root moves none.
TEST(Cost, WhatAReceiverReadsTakesLongerPastTheCaches) {
  const auto read = [](const Shape& shape, uint64_t) { return broadcast_read(shape); };
  const uint64_t many = 4 << 20;
  EXPECT_NEAR(price(pair_of(read, many, 0), round_numbers(), true).ns,
              1000 + 1.5 * (3000 + many) + 1000, 100);
}

// In memory a read takes at least 1.25 times as long as both copies through a slot, even if it is
// much faster in the caches. All that a rank moves in the plan counts, without copies within its
// own memory: an all-reduce of 20 MiB moves 50 MiB, an all-gather of 46 MiB moves 46 MiB.
TEST(Cost, WhatTheSystemReadsInMemoryTakesLongerThanSlots) {
  Costs costs = round_numbers();
  for (double& ns : costs.read.ns) ns /= 8;
  using Make = Plan(const Shape&, uint64_t);
  const auto ratio = [&](Make* read, Make* slots, uint64_t bytes) {
    return price(pair_of(read, bytes, 0), costs, true).ns /
           price(pair_of(slots, bytes, 1 << 17), costs, false).ns;
  };
  const auto gather = [&](uint64_t part) { return ratio(gather_direct, gather_slots, part); };
  const auto reduce = [&](uint64_t whole) {
    return ratio([](const Shape& shape, uint64_t) { return all_reduce_read(shape); },
                 [](const Shape& shape, uint64_t slot) {
                   return reduce_slots(reduction_of_all_reduce(shape), slot);
                 },
                 whole);
  };
  EXPECT_LT(gather(12 << 20), 1);
  EXPECT_LT(gather(23 << 20), 1);
  EXPECT_GT(gather(24 << 20), 1);
  EXPECT_LT(reduce(16 << 20), 1);
  EXPECT_GT(reduce(20 << 20), 1);
}

// The system reads the peer's part into scratch memory, from which the rank then reduces.
TEST(Cost, FoldsOfWhatTheSystemReads) {
  const auto reduce = [](const Shape& shape, uint64_t) {
    return reduce_direct(reduction_of_reduce_scatter(shape));
  };
  const double mapped = price(pair_of(reduce, 10240, 0), round_numbers(), false).ns;
  EXPECT_NEAR(price(pair_of(reduce, 10240, 0), round_numbers(), true).ns - mapped, 3000 + 10240, 1);
}

// The second phase of the all-reduce reads what the peer has written, and what is written there was
// read by the peer.
TEST(Cost, ReadsOfWhatThePeerHasWritten) {
  Costs costs = round_numbers();
  const auto reduce = [](const Shape& shape, uint64_t) { return all_reduce_read(shape); };
  const auto gather = [](const Shape& shape, uint64_t) { return gather_direct(shape, 0); };
  const double before = price(pair_of(reduce, 20480, 0), costs, true).ns,
               gathered = price(pair_of(gather, 10240, 0), costs, true).ns;
  costs.read_written = 2;
  EXPECT_NEAR(price(pair_of(reduce, 20480, 0), costs, true).ns - before, costs.read.at(10240), 1);
  EXPECT_EQ(price(pair_of(gather, 10240, 0), costs, true).ns, gathered) << "of an input";
  costs.slot_cached.ns[0] += 1000;
  costs.slot_cached.ns[1] += 1000;
  costs.slot_cached.ns[2] += 1000;
  EXPECT_NEAR(price(pair_of(reduce, 20480, 0), costs, true).ns - before,
              costs.read.at(10240) + 1000 / 2, 1);
}

TEST(Cost, AllGatherDirectly) {
  const Costs costs = round_numbers();
  // The rank copies its own part, the other's signal comes, the rank copies the other's part, and
  // another exchange follows.
  EXPECT_NEAR(price(pair_of(gather_direct, 10240, 0), costs, false).ns, 5120 + 1000 + 5120 + 1000,
              100);
  EXPECT_NEAR(price(pair_of(gather_direct, 10240, 0), costs, true).ns,
              5120 + 1000 + 3000 + 10240 + 1000, 100);
}

TEST(Cost, RoundsOfABroadcastOverlap) {
  // The root is ahead of the receiver, which fetches a signal for each piece. So N bytes take as
  // long as N bytes and a piece, and not as 2 N. If there are many rounds, the model does not
  // compute them one by one.
  for (const uint64_t bytes : {65536u, 4u << 20}) {
    const double whole = static_cast<double>(bytes), signals = 1000 * whole / 16384;
    const double ns = price(pair_of(broadcast_slots, bytes, 16384), round_numbers(), false).ns;
    EXPECT_NEAR(ns, whole + signals + 16384, 0.01 * whole + 500);
  }
  EXPECT_NEAR(price(pair_of(broadcast_slots, 65536, 65536), round_numbers(), false).ns,
              2 * 65536 + 1000, 500);
}

TEST(Cost, TheLastRoundHasWhatIsLeft) {
  for (const uint64_t bytes : {65536u, 4u << 20}) {
    const auto of = [&](uint64_t more) {
      return price(pair_of(broadcast_slots, bytes + more, 16384), round_numbers(), false);
    };
    EXPECT_NEAR(of(2048).ns - of(0).ns, 2048 + 1000, 1000) << bytes;
    EXPECT_NEAR(of(2048).busy - of(0).busy, 2048 + 1000, 1000) << bytes;
  }
}

TEST(Cost, WhatTheBusierRankDoesNotWait) {
  // The root writes a slot while the receiver waits. The receiver fetches the signal and reads the
  // slot when the root is done.
  EXPECT_NEAR(price(pair_of(broadcast_slots, 65536, 65536), round_numbers(), false).busy,
              65536 + 1000, 100);
  EXPECT_NEAR(price(pair_of(broadcast_slots, 4u << 20, 16384), round_numbers(), false).busy,
              (4 << 20) + 256 * 1000, 50'000);
}

TEST(Cost, PastTheCachesOnlyWhereThatWinsFromThereOn) {
  Costs costs = round_numbers();
  EXPECT_EQ(costs.slot_streaming_from(), std::numeric_limits<uint64_t>::max());
  // The small gain at the first size is within the noise of a measurement.
  costs.slot_streaming.ns = {400, 5000, 160000};
  EXPECT_EQ(costs.slot_streaming_from(), 4096u);
  EXPECT_DOUBLE_EQ(costs.slot(65536), costs.slot_streaming.at(65536));
  costs.slot_streaming.ns = {400, 5000, 280000};
  EXPECT_EQ(costs.slot_streaming_from(), std::numeric_limits<uint64_t>::max());
}

}  // namespace
}  // namespace fsccl::testing
