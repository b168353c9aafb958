// Blocks of a pool on streams: freed bytes go to another stream only when events order it behind
// their last use, and what is said of it when they do not. Forks, foreign pointers, and pools that
// are not empty.
#include <sys/wait.h>
#include <unistd.h>

#include <thread>
#include <vector>

#include "support.h"

namespace fsccl::testing {
namespace {

char names[16];
void* stream(size_t i) { return &names[i]; }
const void* event(size_t i) { return &names[8 + i]; }

// A pool of one rank, and words for what is done with it.
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
  char* take(size_t bytes, void* on) {
    void* pointer = nullptr;
    EXPECT_OK(fsccl_pool_alloc(pool, bytes, on, &pointer));
    return static_cast<char*>(pointer);
  }
  void give(char* block, void* on) { EXPECT_OK(fsccl_pool_free(pool, block, on)); }
  fsccl_pool_stats_t stats() const {
    fsccl_pool_stats_t result = FSCCL_POOL_STATS_INIT;
    EXPECT_OK(fsccl_pool_stats(pool, &result));
    return result;
  }
  fsccl_pool_t pool = nullptr;
};

using Streams = Blocks;

TEST_F(Streams, FreedBytesStayWithTheirStreamUntilEventsOrder) {
  with_pool([&] {
    char* block = take(1000, stream(0));
    give(block, stream(0));
    EXPECT_EQ(stats().local_live_bytes, 0u);
    char* same = take(1000, stream(0));  // in the order of the stream itself
    EXPECT_EQ(same, block);
    give(same, stream(0));
    char* other = take(1000, stream(1));
    EXPECT_NE(other, block);
    char* programs = take(1000, nullptr);
    EXPECT_NE(programs, block);
    ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
    char* unordered = take(1000, stream(1));  // recorded, but not waited for
    EXPECT_NE(unordered, block);
    ASSERT_OK(fsccl_pool_wait(pool, event(0), stream(1)));
    char* ordered = take(1000, stream(1));
    EXPECT_EQ(ordered, block);
    for (char* each : {other, unordered, ordered}) give(each, stream(1));
    give(programs, nullptr);
    // memory that the program freed is free for all streams at once
    EXPECT_EQ(take(1000, nullptr), programs);
    give(programs, nullptr);
  });
}

TEST_F(Streams, AWaitOfTheProgramOrdersEveryStream) {
  with_pool([&] {
    char* block = take(1000, stream(0));
    give(block, stream(0));
    ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
    ASSERT_OK(fsccl_pool_wait(pool, event(0), nullptr));
    EXPECT_EQ(take(1000, stream(3)), block);
    give(block, nullptr);  // but its stream has had it since
    EXPECT_NE(take(500, stream(2)), block);
    EXPECT_EQ(take(500, stream(3)), block);
    give(block, stream(3));
    EXPECT_OK(fsccl_pool_free(pool, block + 1024, stream(2)));
  });
}

// An event says what its stream had waited for, too; one that is recorded again means the later
// record.
TEST_F(Streams, OrderPassesThroughOtherStreams) {
  with_pool([&] {
    char* block = take(1000, stream(0));
    ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
    give(block, stream(0));  // after the record
    ASSERT_OK(fsccl_pool_wait(pool, event(0), stream(1)));
    char* early = take(1000, stream(1));
    EXPECT_NE(early, block);
    ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
    ASSERT_OK(fsccl_pool_wait(pool, event(0), stream(1)));
    ASSERT_OK(fsccl_pool_record(pool, event(1), stream(1)));
    ASSERT_OK(fsccl_pool_wait(pool, event(1), stream(2)));
    EXPECT_EQ(take(1000, stream(2)), block);
    give(block, stream(2));
    give(early, stream(1));
  });
}

TEST_F(Streams, ADeclaredUseCountsAsTheStreamOfTheBlock) {
  with_pool([&] {
    char* block = take(1000, nullptr);
    ASSERT_OK(fsccl_pool_use(pool, block + 10, 20, stream(1), 0));
    give(block, nullptr);
    char* first = take(1000, nullptr);
    EXPECT_NE(first, block);
    EXPECT_EQ(take(1000, stream(1)), block);
    give(block, stream(1));
    give(first, nullptr);
    EXPECT_ERROR(fsccl_pool_use(pool, first, 1, nullptr, 0), FSCCL_ERR_INVALID_ARGUMENT,
                 "not in a block");
    first = take(100, nullptr);
    EXPECT_ERROR(fsccl_pool_use(pool, first + 90, 11, nullptr, 0), FSCCL_ERR_INVALID_ARGUMENT,
                 "beyond", "block of 100 bytes");
    EXPECT_OK(fsccl_pool_use(pool, first + 90, 10, nullptr, 1));
    EXPECT_OK(fsccl_pool_use(pool, first + 100, 0, nullptr, 1));
    give(first, nullptr);
  });
}

TEST_F(Streams, EightAreKnown) {
  with_pool([&] {
    for (size_t i = 0; i < 7; i++) give(take(10, stream(i)), stream(i));
    void* pointer = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(pool, 10, stream(7), &pointer), FSCCL_ERR_LIMIT, "at most 8");
    EXPECT_ERROR(fsccl_pool_record(pool, event(0), stream(7)), FSCCL_ERR_LIMIT, "at most 8");
    char* block = take(10, stream(0));
    EXPECT_ERROR(fsccl_pool_free(pool, block, stream(7)), FSCCL_ERR_LIMIT, "at most 8");
    give(block, stream(0));
    for (size_t i = 0; i < 2000; i++) {  // events are as many as a program likes
      const auto* many = reinterpret_cast<const void*>(0x1000 + i);
      ASSERT_OK(fsccl_pool_record(pool, many, stream(i % 7)));
      ASSERT_OK(fsccl_pool_wait(pool, many, nullptr));
    }
  });
}

// When memory is short, the error names the memory that no order frees.
TEST_F(Streams, ShortOfMemoryTheErrorNamesWhatIsNotOrdered) {
  with_pool(
      [&] {
        give(take(5 << 20, stream(0)), stream(0));
        void* pointer = nullptr;
        EXPECT_ERROR(fsccl_pool_alloc(pool, 5 << 20, stream(1), &pointer), FSCCL_ERR_OUT_OF_MEMORY,
                     "5242880 bytes more were freed", "fsccl_pool_wait");
        ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
        ASSERT_OK(fsccl_pool_wait(pool, event(0), stream(1)));
        give(take(5 << 20, stream(1)), stream(1));
      },
      0, 8 << 20);
}

// Streams tell the pool of their work in threads of their own.
TEST_F(Streams, AnyThreadDeclares) {
  for (const int debug : {0, 1})
    with_pool(
        [&] {
          char* block = take(4096, nullptr);
          std::vector<std::thread> threads;
          for (size_t s = 0; s < 4; s++)
            threads.emplace_back([&, s] {
              for (size_t i = 0; i < 2000; i++) {
                EXPECT_OK(fsccl_pool_use(pool, block + s * 1024, 1024, stream(s), i % 2));
                EXPECT_OK(fsccl_pool_record(pool, event(s), stream(s)));
                EXPECT_OK(fsccl_pool_wait(pool, event((s + 1) % 4), stream(s)));
              }
            });
          for (std::thread& thread : threads) thread.join();
          for (size_t s = 0; s < 4; s++) EXPECT_OK(fsccl_pool_wait(pool, event(s), nullptr));
          EXPECT_OK(fsccl_pool_use(pool, block, 4096, nullptr, 1));
          give(block, nullptr);
        },
        debug);
}

// --- debug mode: what is said
// ----------------------------------------------------------------------------------------------

using Debug = Blocks;

TEST_F(Debug, AMissingOrderNamesBothUses) {
  with_pool(
      [&] {
        char* block = take(1000, stream(0));
        EXPECT_ERROR(fsccl_pool_use(pool, block, 8, stream(1), 0), FSCCL_ERR_INVALID_STATE,
                     "the read of its bytes [0, 8) on stream", "(call 2)",
                     "its allocation on stream", "(call 1)", "block of 1000 bytes");
        ASSERT_OK(fsccl_pool_use(pool, block, 100, stream(0), 1));  // call 3
        ASSERT_OK(fsccl_pool_record(pool, event(0), stream(0)));
        ASSERT_OK(fsccl_pool_wait(pool, event(0), stream(1)));
        ASSERT_OK(fsccl_pool_use(pool, block + 50, 100, stream(1), 0));
        ASSERT_OK(fsccl_pool_use(pool, block, 10, stream(0), 1));  // other bytes than what is read
        EXPECT_ERROR(fsccl_pool_use(pool, block + 60, 1, stream(0), 1), FSCCL_ERR_INVALID_STATE,
                     "the write of its bytes [60, 61)",
                     "not ordered behind the read of its bytes [50, 150)");
        EXPECT_ERROR(fsccl_pool_use(pool, block + 60, 1, nullptr, 0), FSCCL_ERR_INVALID_STATE,
                     "the program's own stream");
        give(block, stream(0));
      },
      1);
}

TEST_F(Debug, FreshAndFreedBytesAreNaN) {
  with_pool(
      [&] {
        for (const size_t bytes : {size_t{64}, size_t{100'000}}) {
          char* block = take(bytes, nullptr);
          for (size_t i = 0; i < bytes; i++) ASSERT_EQ(block[i], '\xff');
          std::memset(block, 0, bytes);
          give(block, nullptr);
          char* again = take(bytes, nullptr);
          EXPECT_NE(again, block) << "an old address would be taken for the new block's";
          for (size_t i = 0; i < bytes; i++) ASSERT_EQ(again[i], '\xff');
          give(again, nullptr);
        }
      },
      1);
}

TEST_F(Debug, AnOldAddressIsNotTheNextThreeBlocks) {
  with_pool(
      [&] {
        std::vector<char*> old;
        for (int i = 0; i < 4; i++) {
          char* block = take(640, nullptr);
          for (char* address : old) EXPECT_NE(block, address);
          old.push_back(block);
          for (char* address : old)
            if (address != block) {
              EXPECT_ERROR(fsccl_pool_free(pool, address, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                           "freed before", "640");
            }
          give(block, nullptr);
        }
      },
      1);
}

// Without debug mode, too.
TEST_F(Debug, WhatIsLeftIsListed) {
  for (const int debug : {0, 1})
    with_pool(
        [&] {
          std::vector<char*> blocks;
          for (size_t i = 0; i < 20; i++) blocks.push_back(take(100 + i, stream(0)));
          char* large = take(4000, nullptr);
          EXPECT_ERROR(fsccl_pool_destroy(pool), FSCCL_ERR_INVALID_STATE, "21 block(s)",
                       "block of 4000 bytes", "made by call 21 on the program's",
                       "block of 119 bytes", "made by call 20 on stream", "and 5 more");
          for (char* block : blocks) give(block, stream(0));
          give(large, nullptr);
        },
        debug);
}

TEST(Pools, DebugModeOfAllRanksAlike) {
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
                                    fsccl_pool_use(pool, block, 1, nullptr, 0),
                                    fsccl_pool_record(pool, event(0), nullptr),
                                    fsccl_pool_wait(pool, event(0), nullptr),
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
    EXPECT_OK(fsccl_pool_free(pool, block, nullptr));  // the parent does not notice
    EXPECT_OK(fsccl_pool_destroy(pool));
  });
}

// --- pointers of others, and slots that are held
// ----------------------------------------------------------------------------

TEST(Pools, PointersOfOthersAndPoolsWithSlots) {
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
      EXPECT_ERROR(fsccl_pool_use(pool, block, 1, nullptr, 1), FSCCL_ERR_INVALID_ARGUMENT,
                   "not in a block");
      fsccl_unit_config_t unit_config = FSCCL_UNIT_CONFIG_INIT;
      unit_config.shard_comm = self.comm;
      unit_config.pool = pool;
      unit_config.name = "held";
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1, param.shape[0] = 500;
      fsccl_unit_t unit = nullptr;
      ASSERT_OK(fsccl_unit_create(&unit_config, &param, 1, &unit));
      ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr));
      fsccl_view_t view{};
      for (const bool grads : {false, true}) {
        ASSERT_OK(grads ? fsccl_unit_grad(unit, 0, &view) : fsccl_unit_param(unit, 0, &view));
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
