// Tests that slots grow on all ranks or on none, and that ranks know which others they reach.
#include "pool_ranks.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kMebibyte = 1 << 20;

class SlotGrowth : public OnDevice {
 protected:
  // One of the ranks fails in the named call. All ranks end with an error, and go on as if nothing
  // had happened.
  void fails_once(const char* function) {
    NEEDS_STAND_IN();
    run_pools(3, [&](const PoolRank& rank) {
      const uint64_t first = rank.take(1, kMebibyte);
      rank.barrier();
      const uint64_t reserved = rank.stats().reserved_bytes,
                     hash = rank.stats().collective_live_bytes;
      if (rank.self.rank == 0) control.fail(function);
      rank.barrier();
      const Result<uint64_t> refused = rank.pool.take(2, 40 * kMebibyte, true, rank.stream);
      EXPECT_FALSE(refused.ok());
      EXPECT_EQ(refused.status().code(), FSCCL_ERR_OUT_OF_MEMORY) << text_of(refused.status());
      EXPECT_EQ(rank.stats().reserved_bytes, reserved);
      EXPECT_EQ(rank.stats().collective_live_bytes, hash);
      const uint64_t second = rank.take(2, 40 * kMebibyte);
      rank.expect_alike(second);
      const HostPage page;
      rank.stream.fill(rank.slot(second), static_cast<uint8_t>(rank.self.rank + 1), 40 * kMebibyte);
      rank.stream.finish();
      rank.barrier();
      for (int peer = 0; peer < 3; peer++)
        EXPECT_EQ(byte_at(rank.slot(second, peer) + 40 * kMebibyte - 1, rank.stream, page),
                  peer + 1);
      rank.barrier();
      EXPECT_EQ(first, 0u);
      rank.give(1);
      rank.give(2);
    });
  }
};

// On one rank's device other memory leaves no space for more slots.
TEST_F(SlotGrowth, ADeviceWithoutMemoryEndsItOnAllRanks) {
  NEEDS_STAND_IN();
  cuda::CUdeviceptr others = 0;
  {
    const cuda::Current current(gpu(1));
    ASSERT_EQ(gpu(1).driver().cuMemAlloc(&others, 1000 * kMebibyte), cuda::CUDA_SUCCESS);
  }
  run_pools(
      2,
      [&](const PoolRank& rank) {
        const uint64_t first = rank.take(1, 10 * kMebibyte), reserved = rank.stats().reserved_bytes;
        const Result<uint64_t> refused = rank.pool.take(2, 40 * kMebibyte, true, rank.stream);
        EXPECT_EQ(refused.status().code(), FSCCL_ERR_OUT_OF_MEMORY);
        EXPECT_THAT(refused.status().text(),
                    ::testing::HasSubstr(rank.self.rank ? "device 1 has no" : "rank 1"));
        EXPECT_EQ(rank.stats().reserved_bytes, reserved);
        rank.expect_alike(rank.take(3, kMebibyte));  // the memory that exists suffices
        rank.barrier();
        if (rank.self.rank == 1) {
          const cuda::Current current(gpu(1));
          EXPECT_EQ(gpu(1).driver().cuMemFree(others), cuda::CUDA_SUCCESS);
        }
        rank.barrier();
        rank.expect_alike(rank.take(2, 40 * kMebibyte));
        EXPECT_EQ(first, 0u);
        for (const uint64_t key : {1, 2, 3}) rank.give(key);
      },
      [](fsccl_pool_config_t& config, int rank) { config.device = rank; });
}

TEST_F(SlotGrowth, APeersMemoryThatCannotBeMappedEndsItOnAllRanks) {
  fails_once("cuMemImportFromShareableHandle");
}

TEST_F(SlotGrowth, TheSmallestOfTheRanksLimitsHolds) {
  run_pools(
      2,
      [](const PoolRank& rank) {
        rank.take(1, 6 * kMebibyte);
        const Result<uint64_t> refused = rank.pool.take(2, 3 * kMebibyte, true, rank.stream);
        EXPECT_EQ(refused.status().code(), FSCCL_ERR_OUT_OF_MEMORY);
        EXPECT_THAT(refused.status().text(), ::testing::HasSubstr("parameters"));
        rank.expect_alike(rank.take(3, 2 * kMebibyte));
        rank.give(1);
        rank.give(3);
      },
      [](fsccl_pool_config_t& config, int rank) {
        config.limit_bytes = (rank ? 8 : 100) * kMebibyte;
      });
}

// The blocks of one rank leave no memory for its slots, though the peers have enough.
TEST_F(SlotGrowth, BlocksThatLeaveNoRoomEndItOnAllRanksUntilTheyGo) {
  run_pools(
      2,
      [](const PoolRank& rank) {
        void* block = nullptr;
        if (rank.self.rank == 1) block = rank.pool.alloc(30 * kMebibyte, rank.stream, 1).take();
        const Result<uint64_t> refused = rank.pool.take(1, 6 * kMebibyte, true, rank.stream);
        EXPECT_EQ(refused.status().code(), FSCCL_ERR_OUT_OF_MEMORY);
        EXPECT_THAT(refused.status().text(),
                    ::testing::HasSubstr(rank.self.rank == 1 ? "of block" : "rank 1"));
        if (block) {
          EXPECT_GOOD(rank.pool.free(block, rank.stream));
        }
        rank.expect_alike(rank.take(1, 6 * kMebibyte));  // the block's memory was given back
        rank.give(1);
      },
      [](fsccl_pool_config_t& config, int) { config.limit_bytes = 32 * kMebibyte; });
}

TEST_F(SlotGrowth, WithoutPeerToPeerNobodyIsReachedAndThePoolWorks) {
  const Settings settings{{"FSCCL_DEVICE_TRANSPORT", "staged"}};
  const int64_t before = control.live("mappings");
  run_pools(2, [](const PoolRank& rank) {
    EXPECT_TRUE(rank.pool.reaches(rank.self.rank));
    EXPECT_FALSE(rank.pool.reaches(1 - rank.self.rank));
    rank.expect_alike(rank.take(1, kMebibyte));
    rank.give(1);
  });
  EXPECT_EQ(control.live("mappings"), before);
}

TEST_F(SlotGrowth, ARankWithoutItsDeviceEndsTheCreationOnAll) {
  run_ranks(2, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = self.rank ? 99 : 0;
    const auto made = DevicePool::create(*live_comm(self.comm), config);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), FSCCL_ERR_NOT_AVAILABLE);
    EXPECT_THAT(made.status().text(), ::testing::HasSubstr(self.rank ? "device 99" : "rank 1"));
  });
}

TEST_F(SlotGrowth, TheDefaultLimitIsSharedByTheRanksOfADevice) {
  const auto free_bytes = [](int ordinal) {
    size_t free = 0, total = 0;
    const cuda::Current current(gpu(ordinal));
    EXPECT_EQ(gpu(ordinal).driver().cuMemGetInfo(&free, &total), cuda::CUDA_SUCCESS);
    return static_cast<double>(free);
  };
  const double first = free_bytes(0), last = free_bytes(last_gpu());
  run_pools(
      3,
      [&](const PoolRank& rank) {
        const double sharers = last_gpu() == 0 ? 3 : rank.self.rank == 2 ? 1 : 2;
        const double all = rank.self.rank == 2 ? last : first;
        EXPECT_NEAR(static_cast<double>(rank.stats().limit_bytes), all * 0.9 / sharers, all / 50);
      },
      [](fsccl_pool_config_t& config, int rank) {
        config.limit_bytes = 0;
        config.device = rank == 2 ? last_gpu() : 0;
      });
}

TEST_F(SlotGrowth, ModesThatDifferAreNamed) {
  run_ranks(2, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.debug = self.rank;
    const auto made = DevicePool::create(*live_comm(self.comm), config);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.status().code(), FSCCL_ERR_MISMATCH);
    EXPECT_THAT(made.status().text(), ::testing::HasSubstr("debug mode"));
  });
}

}  // namespace
}  // namespace fsccl::testing
