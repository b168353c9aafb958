// Tests blocks of a pool: what debug mode finds, forks, foreign pointers, streams given to host
// memory, and pools that are not empty.
#include <sys/wait.h>
#include <unistd.h>

#include <vector>

#include "fsccl/allocator.h"
#include "fsccl/insight.h"
#include "support.h"

namespace fsccl::testing {
namespace {

// A pool of one rank, with short forms of the calls on it.
class Blocks : public ::testing::Test {
 protected:
  void with_pool(const std::function<void()>& body, int debug = 0, uint64_t limit_bytes = 0) {
    run_ranks(1, [&](Rank& self) {
      fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
      config.debug = debug;
      config.limit_bytes = limit_bytes;
      ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
      body();
      EXPECT_OK(fsccl_pool_destroy(pool));
    });
  }
  char* take(size_t bytes) {
    void* pointer = nullptr;
    EXPECT_OK(fsccl_pool_alloc(pool, bytes, nullptr, &pointer));
    return static_cast<char*>(pointer);
  }
  void give(char* block) { EXPECT_OK(fsccl_pool_free(pool, block, nullptr)); }
  fsccl_pool_stats_t stats() const {
    fsccl_pool_stats_t result = FSCCL_POOL_STATS_INIT;
    EXPECT_OK(fsccl_pool_stats(pool, &result));
    return result;
  }
  fsccl_pool_t pool = nullptr;
};

TEST_F(Blocks, FreedBytesGoToTheNextBlock) {
  with_pool([&] {
    char* block = take(1000);
    give(block);
    EXPECT_EQ(stats().local_live_bytes, 0u);
    EXPECT_EQ(take(1000), block);
    give(block);
  });
}

// A refused call changes nothing, and the same call with NULL succeeds.
TEST_F(Blocks, StreamsAreRefusedInHostMemory) {
  for (const int debug : {0, 1})
    with_pool(
        [&] {
          char place = 0;
          void* pointer = nullptr;
          EXPECT_ERROR(fsccl_pool_alloc(pool, 10, &place, &pointer), FSCCL_ERR_INVALID_ARGUMENT,
                       "host memory", "give NULL");
          EXPECT_EQ(pointer, nullptr);
          EXPECT_EQ(stats().allocations, 0u);
          char* block = take(10);
          EXPECT_ERROR(fsccl_pool_free(pool, block, &place), FSCCL_ERR_INVALID_ARGUMENT,
                       "host memory", "give NULL");
          fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
          ASSERT_OK(fsccl_pool_allocator(pool, &table));
          EXPECT_ERROR(table.allocate(table.context, 10, 64, &place, &pointer),
                       FSCCL_ERR_INVALID_ARGUMENT, "host memory");
          EXPECT_OK(table.destroy(table.context));
          give(block);
        },
        debug);
}

// --- debug mode: what is said
// ----------------------------------------------------------------------------------------------

using Debug = Blocks;

TEST_F(Debug, FreshAndFreedBytesAreNaN) {
  with_pool(
      [&] {
        for (const size_t bytes : {size_t{64}, size_t{100'000}}) {
          char* block = take(bytes);
          for (size_t i = 0; i < bytes; i++) ASSERT_EQ(block[i], '\xff');
          std::memset(block, 0, bytes);
          give(block);
          char* again = take(bytes);
          EXPECT_NE(again, block) << "an old address would be taken for the new block's";
          for (size_t i = 0; i < bytes; i++) ASSERT_EQ(again[i], '\xff');
          give(again);
        }
      },
      1);
}

TEST_F(Debug, AnOldAddressIsNotTheNextThreeBlocks) {
  with_pool(
      [&] {
        std::vector<char*> old;
        for (int i = 0; i < 4; i++) {
          char* block = take(640);
          for (char* address : old) EXPECT_NE(block, address);
          old.push_back(block);
          for (char* address : old)
            if (address != block) {
              EXPECT_ERROR(fsccl_pool_free(pool, address, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                           "freed before", "640");
            }
          give(block);
        }
      },
      1);
}

// Blocks that are left are listed without debug mode, too.
TEST_F(Debug, WhatIsLeftIsListed) {
  for (const int debug : {0, 1})
    with_pool(
        [&] {
          std::vector<char*> blocks;
          for (size_t i = 0; i < 20; i++) blocks.push_back(take(100 + i));
          char* large = take(4000);
          EXPECT_ERROR(fsccl_pool_destroy(pool), FSCCL_ERR_INVALID_STATE, "21 block(s)",
                       "block of 4000 bytes", "made by call 21)", "block of 119 bytes",
                       "made by call 20)", "and 5 more");
          for (char* block : blocks) give(block);
          give(large);
        },
        debug);
}

TEST(PoolBlocks, DebugModeOfAllRanksAlike) {
  run_ranks(2, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.debug = self.rank;
    fsccl_pool_t none = nullptr;
    EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &none), FSCCL_ERR_MISMATCH, "debug",
                 "all ranks alike");
  });
}

// --- forks
// -------------------------------------------------------------------------------------------------

TEST(Forks, InAForkedChildEveryFunctionOfAPoolSaysSo) {
  run_ranks(1, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.debug = 1;
    fsccl_pool_t pool = nullptr;
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool, 100, nullptr, &block));
    const pid_t child = fork();
    if (child == 0) {
      fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
      uint64_t released = 0;
      void* pointer = nullptr;
      fsccl_pool_t made = nullptr;
      const fsccl_status_t all[] = {fsccl_pool_create(self.comm, &config, &made),
                                    fsccl_pool_alloc(pool, 1, nullptr, &pointer),
                                    fsccl_pool_free(pool, block, nullptr),
                                    fsccl_pool_import(pool, &stats, 4096),
                                    fsccl_pool_stats(pool, &stats),
                                    fsccl_pool_trim(pool, &released),
                                    fsccl_pool_schedule(pool, nullptr, 0),
                                    fsccl_pool_step(pool),
                                    fsccl_pool_destroy(pool)};
      for (int i = 0; i < static_cast<int>(std::size(all)); i++)
        if (all[i] != FSCCL_ERR_FORKED) _exit(1 + i);
      _exit(std::strstr(last_error().text, "fork") ? 0 : 100);
    }
    int status = 1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0)
        << "the number of the call that said something else";
    EXPECT_OK(fsccl_pool_free(pool, block, nullptr));  // the parent's pool is as before
    EXPECT_OK(fsccl_pool_destroy(pool));
  });
}

// --- pointers of others, and slots that are held
// ----------------------------------------------------------------------------

TEST(PoolBlocks, PointersOfOthersAndPoolsWithSlots) {
  for (const int debug : {0, 1})
    run_ranks(2, [debug](Rank& self) {
      fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
      config.debug = debug;
      fsccl_pool_t pool = nullptr, other = nullptr;
      ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
      ASSERT_OK(fsccl_pool_create(self.comm, &config, &other));
      void* block = nullptr;
      ASSERT_OK(fsccl_pool_alloc(other, 100, nullptr, &block));
      EXPECT_ERROR(fsccl_pool_free(pool, block, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                   "not a block");
      fsccl_unit_config_t unit_config = FSCCL_UNIT_CONFIG_INIT;
      unit_config.shard_comm = self.comm;
      unit_config.pool = pool;
      unit_config.name = "held";
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1, param.shape[0] = 500;
      fsccl_unit_t unit = nullptr;
      ASSERT_OK(fsccl_unit_create(&unit_config, &param, 1, &unit));
      ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr));
      fsccl_view_t view{};
      for (const bool grads : {false, true}) {
        ASSERT_OK(grads ? fsccl_unit_grad(unit, 0, nullptr, &view)
                        : fsccl_unit_param(unit, 0, &view));
        EXPECT_ERROR(fsccl_pool_free(pool, view.data, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                     "not a block");
        EXPECT_ERROR(fsccl_pool_destroy(pool), FSCCL_ERR_INVALID_STATE,
                     "unit 'held' (its parameters are unsharded)", "with the units' shards",
                     grads ? "gradients are not reduced" : "unsharded");
      }
      ASSERT_OK(fsccl_unit_destroy(unit));
      EXPECT_OK(fsccl_pool_destroy(pool));
      EXPECT_OK(fsccl_pool_free(other, block, nullptr));
      EXPECT_OK(fsccl_pool_destroy(other));
    });
}

}  // namespace
}  // namespace fsccl::testing
