// Tests slots of pools on GPUs between ranks: they have the same offsets on all ranks, which map
// each other's, and are never written before their last use is over, on whichever rank that was.
#include "fsccl/insight.h"
#include "pool_ranks.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kPoolMb = 1 << 20;

class DevicePools : public OnDevice {
 protected:
  // Takes and gives back slots of three units, one after the other, of which two are held at a
  // time.
  static void step(const PoolRank& rank, uint64_t bytes = 3 * kPoolMb) {
    for (uint64_t key = 1; key <= 3; key++) {
      rank.expect_alike(rank.take(key, key * bytes));
      if (key > 1) rank.give(key - 1);
    }
    rank.give(3);
    EXPECT_GOOD(rank.pool.end_step());
  }
};

TEST_F(DevicePools, RanksOfOneAndOfOtherGpusMapEachOthersSlots) {
  run_pools(
      3,
      [](const PoolRank& rank) {
        const uint64_t offset = rank.take(1, 5000), other = rank.take(2, 3 * kPoolMb);
        rank.expect_alike(offset);
        rank.expect_alike(other);
        rank.stream.fill(rank.slot(other), static_cast<uint8_t>(10 + rank.self.rank), 3 * kPoolMb);
        rank.stream.finish();
        rank.barrier();
        const HostPage page;
        for (int peer = 0; peer < rank.self.ranks; peer++) {
          ASSERT_TRUE(rank.pool.reaches(peer));
          EXPECT_EQ(byte_at(rank.slot(other, peer) + 3 * kPoolMb - 1, rank.stream, page),
                    10 + peer);
        }
        rank.barrier();
        rank.give(1);
        rank.give(2);
      },
      [](fsccl_pool_config_t& config, int rank) { config.device = rank == 2 ? last_gpu() : 0; });
}

TEST_F(DevicePools, TheFirstStepGrowsAndNoneBehindThePlan) {
  uint64_t calls = 0;
  run_pools(2, [&](const PoolRank& rank) {
    for (int i = 0; i < 3; i++) step(rank);
    rank.barrier();
    const uint64_t growths = rank.stats().growths;
    EXPECT_GT(growths, 0u);
    if (rank.self.rank == 0) calls = memory_calls();
    rank.barrier();
    for (int i = 0; i < 5; i++) step(rank);
    rank.barrier();
    if (rank.self.rank == 0) {
      EXPECT_EQ(memory_calls(), calls);
    }
    rank.barrier();
    EXPECT_EQ(rank.stats().growths, growths);
    EXPECT_EQ(rank.stats().plan_misses, 0u);
    EXPECT_EQ(rank.stats().steps, 8u);
    rank.expect_alike(rank.pool.history_hash());
  });
}

TEST_F(DevicePools, AnotherStreamBeginsBehindTheLastUse) {
  run_pools(1, [](const PoolRank& rank) {
    HostPage page;
    TestStream user, next;
    const uint64_t offset = rank.take(1, kPoolMb, user);
    page.hold(user, 0);
    user.fill(rank.slot(offset), 1, kPoolMb);
    rank.give(1, user);
    EXPECT_EQ(rank.take(2, kPoolMb, next), offset);
    next.fill(rank.slot(offset), 2, kPoolMb);
    EXPECT_FALSE(next.idle());
    page.word(0) = 1;
    user.finish();
    EXPECT_EQ(byte_at(rank.slot(offset), next, page), 2);
    rank.give(2, next);
  });
}

// If the stream waited for everything that was given back before, it would stand still.
TEST_F(DevicePools, AStreamWaitsForNoOtherBytesThanItsOwn) {
  run_pools(1, [](const PoolRank& rank) {
    HostPage page;
    TestStream user, next;
    rank.take(1, kPoolMb, next);
    rank.take(2, 2 * kPoolMb, user);
    page.hold(user, 0);
    rank.give(2, user);
    rank.give(1, next);
    const uint64_t offset = rank.take(3, kPoolMb, next);
    next.fill(rank.slot(offset), 2, kPoolMb);
    EXPECT_EQ(byte_at(rank.slot(offset), next, page), 2);
    page.word(0) = 1;
    rank.give(3, next);
  });
}

TEST_F(DevicePools, PeersThatStillReadAreWaitedFor) {
  run_pools(1, [](const PoolRank& rank) {
    HostPage page;
    const uint64_t offset = rank.take(1, kPoolMb);
    rank.stream.fill(rank.slot(offset), 1, kPoolMb);
    rank.stream.finish();
    rank.give(1, rank.stream, {page.until(1, 5), page.until(2, 3)});
    EXPECT_EQ(rank.take(2, kPoolMb), offset);
    rank.stream.fill(rank.slot(offset), 2, kPoolMb);
    page.word(1) = 5;
    EXPECT_FALSE(rank.stream.idle());
    TestStream other;
    EXPECT_EQ(byte_at(rank.slot(offset), other, page), 1);
    page.word(2) = 4;
    EXPECT_EQ(byte_at(rank.slot(offset), rank.stream, page), 2);
    rank.give(2);
  });
}

// The driver takes 255 operations on words in one call, and this slot waits for more.
TEST_F(DevicePools, AnyNumberOfPeersIsWaitedFor) {
  constexpr size_t kWaits = 600;
  run_pools(1, [](const PoolRank& rank) {
    HostPage page;
    std::vector<cuda::CUstreamBatchMemOpParams> waits;
    for (size_t word = 0; word < kWaits; word++) waits.push_back(page.until(word, 1));
    const uint64_t offset = rank.take(1, kPoolMb);
    rank.give(1, rank.stream, waits);
    EXPECT_EQ(rank.take(2, kPoolMb), offset);
    for (size_t word = 0; word + 1 < kWaits; word++) page.word(word) = 1;
    EXPECT_FALSE(rank.stream.idle());
    page.word(kWaits - 1) = 1;
    rank.stream.finish();
    rank.give(2);
  });
}

TEST_F(DevicePools, ADeclaredStepHasOneSegmentOfExactlyItsPlan) {
  run_pools(2, [](const PoolRank& rank) {
    std::vector<StepEvent> events;
    for (uint64_t key = 1; key <= 4; key++) {
      events.push_back({.stable = true, .key = key, .bytes = key * 3 * kPoolMb});
      if (key > 1) events.push_back({.op = StepOp::kGiveBack, .key = key - 1});
    }
    events.push_back({.op = StepOp::kGiveBack, .key = 4});
    EXPECT_GOOD(rank.pool.declare(events));
    const fsccl_pool_stats_t planned = rank.stats();
    EXPECT_EQ(planned.growths, 1u);
    EXPECT_EQ(planned.plan_bound_bytes, 21 * kPoolMb);
    EXPECT_LE(planned.reserved_bytes, planned.planned_bytes + 2 * kPoolMb);
    for (int i = 0; i < 3; i++) {
      for (const StepEvent& event : events)
        event.takes() ? (void)rank.take(event.key, event.bytes) : rank.give(event.key);
      EXPECT_GOOD(rank.pool.end_step());
    }
    EXPECT_EQ(rank.stats().growths, 1u);
    EXPECT_EQ(rank.stats().plan_misses, 0u);
  });
}

// The slots lie badly in the step that is recorded: nothing fits into two gaps.
TEST_F(DevicePools, WhatThePlanDoesNotNeedGoesBack) {
  run_pools(2, [](const PoolRank& rank) {
    HostPage page;
    for (int i = 0; i < 3; i++) {
      uint64_t key = 0;
      for (const uint64_t mb : {4, 2, 4, 2}) rank.take(++key, mb * kPoolMb);
      rank.give(1);
      rank.give(3);
      for (const uint64_t mb : {5, 5}) rank.take(++key, mb * kPoolMb);
      EXPECT_EQ(rank.stats().reserved_bytes, (i ? 18 : 22) * kPoolMb);
      for (const uint64_t each : {2, 4, 5, 6}) rank.give(each);
      EXPECT_GOOD(rank.pool.end_step());
    }
    const fsccl_pool_stats_t stats = rank.stats();
    EXPECT_EQ(stats.planned_bytes, 14 * kPoolMb);
    EXPECT_EQ(stats.reserved_bytes, 18 * kPoolMb);  // whole segments
    EXPECT_EQ(stats.plan_misses, 0u);
    rank.expect_alike(stats.reserved_bytes);
    const uint64_t offset = rank.take(1, 4 * kPoolMb);  // the pool goes on
    rank.stream.fill(rank.slot(offset), 9, 4 * kPoolMb);
    rank.stream.finish();
    rank.barrier();
    EXPECT_EQ(byte_at(rank.slot(offset, 1 - rank.self.rank), rank.stream, page), 9);
    rank.barrier();
    rank.give(1);
  });
}

TEST_F(DevicePools, WhatIsNotKnownToBeOverStays) {
  NEEDS_STAND_IN();
  const uint64_t before = control.used_bytes(0);
  run_pools(1, [&](const PoolRank& rank) {
    rank.take(1, kPoolMb);
    rank.give(1);
    control.fail("cuCtxSynchronize", 1, 999);
  });
  EXPECT_GT(control.used_bytes(0), before);
  expect_what_is_left();
}

TEST_F(DevicePools, DebugModeSpoilsWhatIsFreeAndWhatIsFresh) {
  run_pools(
      1,
      [](const PoolRank& rank) {
        HostPage page;
        const uint64_t offset = rank.take(1, kPoolMb);
        EXPECT_EQ(byte_at(rank.slot(offset), rank.stream, page), 0xff);
        rank.stream.fill(rank.slot(offset), 1, kPoolMb);
        rank.give(1);
        EXPECT_EQ(byte_at(rank.slot(offset), rank.stream, page), 0xff);
        void* const block = rank.pool.alloc(1000, rank.stream, 1).take();
        const auto address = reinterpret_cast<cuda::CUdeviceptr>(block);
        EXPECT_EQ(byte_at(address, rank.stream, page), 0xff);
        rank.stream.fill(address, 1, 1000);
        EXPECT_GOOD(rank.pool.free(block, rank.stream));
        EXPECT_EQ(byte_at(address, rank.stream, page), 0xff);
      },
      [](fsccl_pool_config_t& config, int) { config.debug = 1; });
}

TEST_F(DevicePools, UnitsAndBlocksThatAreLeftAreListed) {
  run_pools(1, [](const PoolRank& rank) {
    rank.pool.add_unit(rank.pool.next_unit_key(), "layers.0");
    void* const block = rank.pool.alloc(1000, rank.stream, 1).take();
    const Status left = rank.pool.check_empty();
    ASSERT_EQ(left.code(), FSCCL_ERR_INVALID_STATE);
    for (const char* word : {"1 unit(s)", "1 block(s)", "unit 'layers.0'", "1000 bytes", "call 1"})
      EXPECT_THAT(left.text(), ::testing::HasSubstr(word));
    rank.pool.remove_unit(1);
    EXPECT_GOOD(rank.pool.free(block, rank.stream));
    EXPECT_GOOD(rank.pool.check_empty());
    EXPECT_EQ(rank.pool.give_back(1, rank.stream, {}).code(), FSCCL_ERR_INVALID_STATE);
  });
}

}  // namespace
}  // namespace fsccl::testing
