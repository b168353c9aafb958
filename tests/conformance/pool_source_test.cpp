// Tests pools over a source of the program's. Adaptors see and refuse the growth of the library's
// own arena, on each rank, and memory from outside carries units if it can be shared.
#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "fsccl/insight.h"
#include "source_stack.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

fsccl_allocator_stats_t read(const fsccl_allocator_t& counting) {
  fsccl_allocator_stats_t stats = FSCCL_ALLOCATOR_STATS_INIT;
  EXPECT_OK(fsccl_allocator_stats(&counting, &stats));
  return stats;
}
fsccl_pool_stats_t read(fsccl_pool_t pool) {
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  EXPECT_OK(fsccl_pool_stats(pool, &stats));
  return stats;
}

fsccl_pool_t make_pool(fsccl_comm_t comm, const fsccl_allocator_t& source,
                       uint64_t limit_bytes = 64 << 20) {
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = limit_bytes;
  config.source = &source;
  fsccl_pool_t pool = nullptr;
  EXPECT_OK(fsccl_pool_create(comm, &config, &pool));
  return pool;
}

// Runs two steps of a unit with shared slots and one with private ones.
void train(fsccl_comm_t comm, fsccl_pool_t pool) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE}) {
    UnitCase c = simple_unit({{900, 40}, {5}, {7, 3}});
    c.sharing = sharing;
    TestUnit unit(c, comm, pool);
    for (uint64_t step = 1; step <= 2; ++step) {
      unit.write_shards(step);
      unit.unshard();
      unit.check_params(step);
      unit.write_grads(step, unit.rank());
      unit.reshard();
      unit.reduce(nullptr);
      unit.check_sharded_grads({{step}});
    }
  }
}

TEST(PoolSource, AdaptorsSeeTheGrowthOfTheirRank) {
  for (const int ranks : {1, 3})
    run_ranks(ranks, [](Rank& self) {
      SourceStack stack("host", {"limit", "log", "statistics"});  // 12 MiB
      fsccl_pool_t pool = make_pool(self.comm, stack.top());
      EXPECT_EQ(read(stack.top()).total_bytes, 0u);
      train(self.comm, pool);
      const fsccl_pool_stats_t held = read(pool);
      EXPECT_GT(held.reserved_bytes, 0u);
      EXPECT_EQ(read(stack.top()).live_bytes, held.reserved_bytes);
      EXPECT_EQ(read(stack.top()).allocations, held.growths - (self.rank ? 1 : 0))
          << "the shared part is that of rank 0";
      void* block = nullptr;
      ASSERT_OK(fsccl_pool_alloc(pool, 3 << 20, nullptr, &block));
      std::memset(block, 1, 3 << 20);
      EXPECT_GT(read(stack.top()).live_bytes, held.reserved_bytes);
      ASSERT_OK(fsccl_pool_free(pool, block, nullptr));
      uint64_t released = 0;
      ASSERT_OK(fsccl_pool_trim(pool, &released));
      EXPECT_GT(released, 0u);
      EXPECT_EQ(read(stack.top()).live_bytes, read(pool).reserved_bytes);
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      ASSERT_OK(fsccl_pool_destroy(pool));
      EXPECT_EQ(read(stack.top()).live_bytes, 0u);
      EXPECT_EQ(read(stack.top()).failures, 0u);
    });
}

TEST(PoolSource, BlocksAreRefusedByTheSource) {
  run_ranks(2, [](Rank& self) {
    SourceStack stack("host", {"statistics", "limit"});  // 12 MiB
    fsccl_pool_t pool = make_pool(self.comm, stack.top());
    void *block = nullptr, *other = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool, 10 << 20, nullptr, &block));
    EXPECT_ERROR(fsccl_pool_alloc(pool, 4 << 20, nullptr, &other), FSCCL_ERR_OUT_OF_MEMORY,
                 "asked its source", "limit of 12582912");
    ASSERT_OK(fsccl_pool_alloc(pool, 2 << 20, nullptr, &other));
    EXPECT_EQ(read(stack.table(1)).live_bytes, 12u << 20);
    ASSERT_OK(fsccl_pool_free(pool, other, nullptr));
    ASSERT_OK(fsccl_pool_free(pool, block, nullptr));
    train(self.comm, pool);  // the pool gives back unused memory of blocks that slots need
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    ASSERT_OK(fsccl_pool_destroy(pool));
    EXPECT_EQ(read(stack.table(1)).live_bytes, 0u);
  });
}

TEST(PoolSource, OnFailureMayFreeOfThePoolItself) {
  const fsccl_comm_t comm = alone();
  struct State {
    fsccl_pool_t pool;
    void* spare;
    int asked;
  } state{nullptr, nullptr, 0};
  fsccl_allocator_t host, limit, careful;
  ASSERT_OK(fsccl_allocator_host(&host));
  ASSERT_OK(fsccl_allocator_limit(&host, 8 << 20, &limit));
  ASSERT_OK(fsccl_allocator_on_failure(
      &limit,
      [](void* context, uint64_t) {
        auto* const self = static_cast<State*>(context);
        self->asked++;
        uint64_t released = 0;
        EXPECT_OK(fsccl_pool_free(self->pool, self->spare, nullptr));
        EXPECT_OK(fsccl_pool_trim(self->pool, &released));
        return uint64_t{6 << 20};
      },
      &state, &careful));
  state.pool = make_pool(comm, careful);
  {
    TestUnit unit(simple_unit({{900, 40}}), comm, state.pool);
    unit.write_shards(1);
    ASSERT_OK(fsccl_pool_alloc(state.pool, 6 << 20, nullptr, &state.spare));
    EXPECT_EQ(state.asked, 0);
    unit.unshard();  // the slot does not fit beside that block
    EXPECT_EQ(state.asked, 1);
    unit.check_params(1);
    unit.check_shards(1);
    unit.reshard();
  }
  ASSERT_OK(fsccl_pool_destroy(state.pool));
  for (const fsccl_allocator_t& table : {host, limit, careful})
    EXPECT_OK(table.destroy(table.context));
  ASSERT_OK(fsccl_comm_destroy(comm));
}

// One rank's source refuses a slot that all ranks take. All get the error, as with a shortage of
// that rank's machine, and go on without the slot.
TEST(PoolSource, ASlotThatOneRankRefusesIsRefusedOnAll) {
  run_ranks(3, [](Rank& self) {
    fsccl_allocator_t host, limit;
    ASSERT_OK(fsccl_allocator_host(&host));
    ASSERT_OK(fsccl_allocator_limit(&host, self.rank == 1 ? 4 << 20 : 64 << 20, &limit));
    fsccl_pool_t pool = make_pool(self.comm, limit);
    UnitCase c = simple_unit({{900, 900}});
    c.sharing = FSCCL_SHARING_PRIVATE;
    {
      TestUnit unit(c, self.comm, pool);  // its shards and their gradients take the 4 MiB
      for (int i = 0; i < 3; i++) {
        fsccl_work_t work = nullptr;
        EXPECT_ERROR(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, &work),
                     FSCCL_ERR_OUT_OF_MEMORY, self.rank == 1 ? "asked its source" : "of rank 1");
      }
      UnitCase fits = simple_unit({{10, 10}});
      fits.sharing = FSCCL_SHARING_READ_ONLY;  // the shared slot takes memory of rank 0's source
      TestUnit small(fits, self.comm, pool);
      small.write_shards(1);
      small.unshard();
      small.check_params(1);
      small.reshard();
    }
    EXPECT_OK(fsccl_pool_destroy(pool));
    EXPECT_OK(limit.destroy(limit.context));
    EXPECT_OK(host.destroy(host.context));
  });
}

// The source has files from outside. The first rank of the host is asked for one.
TEST(PoolSource, OutsideMemoryThatIsShared) {
  for (const int ranks : {1, 3}) {
    outside_source_t source;
    fsccl_allocator_t outside;
    outside_source_init(&source, size_t{1} << 40, 1, &outside);
    run_ranks(ranks, [&](Rank& self) {
      fsccl_allocator_t counting;
      ASSERT_OK(fsccl_allocator_count(&outside, &counting));
      fsccl_pool_t pool = make_pool(self.comm, counting);
      train(self.comm, pool);
      EXPECT_EQ(read(counting).live_bytes, read(pool).reserved_bytes);
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      if (self.rank == 0) {
        EXPECT_EQ(source.allocations, 1);
        EXPECT_EQ(source.out, static_cast<size_t>(self.ranks) * 3 * (64 << 20) + (2 << 20));
        struct stat state{};
        EXPECT_EQ(fstat(source.blocks[0].fd, &state), 0);
        EXPECT_GE(static_cast<uint64_t>(state.st_blocks) * 512, read(pool).reserved_bytes)
            << "the memory is not the source's";
      }
      UnitCase c = simple_unit({{90, 40}});
      c.sharing = FSCCL_SHARING_COPY_ON_WRITE;
      {
        TestUnit unit(c, self.comm, pool);
        unit.write_shards(1);
        unit.unshard();
        unit.write_params(100 + static_cast<uint64_t>(self.rank));
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        unit.check_params(100 + static_cast<uint64_t>(self.rank));
        unit.reshard();
        unit.unshard();
        unit.check_params(1);
      }
      auto* const memory = static_cast<char*>(std::aligned_alloc(4096, 8192));
      std::memset(memory, 7, 8192);
      ASSERT_OK(fsccl_pool_import(pool, memory, 8192));
      EXPECT_EQ(memory[8191], 7);
      ASSERT_OK(fsccl_pool_free(pool, memory, nullptr));
      std::free(memory);
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      ASSERT_OK(fsccl_pool_destroy(pool));
      EXPECT_EQ(read(counting).live_bytes, 0u);
      EXPECT_OK(counting.destroy(counting.context));
    });
    EXPECT_EQ(source.frees, 1);
    EXPECT_EQ(source.wrong_frees, 0);
    EXPECT_EQ(source.out, 0u);
  }
}

TEST(PoolSource, OutsideMemoryWithoutAFileServesOneRank) {
  for (const int ranks : {1, 2}) {
    auto source = std::make_unique<outside_source_t>();
    fsccl_allocator_t outside;
    outside_source_init(source.get(), 100u << 20, 0, &outside);
    run_ranks(ranks, [&](Rank& self) {
      fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
      config.source = &outside;
      config.limit_bytes = 16 << 20;
      fsccl_pool_t pool = nullptr;
      if (self.ranks == 2) {
        const fsccl_status_t status = fsccl_pool_create(self.comm, &config, &pool);
        EXPECT_EQ(status, self.rank == 0 ? FSCCL_ERR_NOT_AVAILABLE : FSCCL_ERR_OUT_OF_MEMORY)
            << explain(status);
        EXPECT_THAT(explain(status),
                    ::testing::HasSubstr(self.rank == 0 ? "has no function share" : "rank 0"));
        const PoolScope usual(self.comm);  // the communicator is as it was
        train(self.comm, usual.get());
        return;
      }
      EXPECT_OK(fsccl_pool_create(self.comm, &config, &pool));
      EXPECT_EQ(source->allocations, 1);
      train(self.comm, pool);
      auto* const memory = static_cast<char*>(std::aligned_alloc(4096, 4096));
      EXPECT_ERROR(fsccl_pool_import(pool, memory, 4096), FSCCL_ERR_NOT_AVAILABLE, "no file");
      std::free(memory);
      EXPECT_OK(fsccl_pool_destroy(pool));
      config.limit_bytes = 64 << 20;
      EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_OUT_OF_MEMORY,
                   "three parts of the limit", "'outside'");
    });
    EXPECT_EQ(source->out, 0u);
    EXPECT_EQ(source->wrong_frees, 0);
  }
}

TEST(PoolSource, APoolStandsOnAnother) {
  const fsccl_comm_t comm = alone();
  const PoolScope below(comm, 128 << 20);
  fsccl_allocator_t blocks;
  ASSERT_OK(fsccl_pool_allocator(below.get(), &blocks));
  fsccl_pool_t pool = make_pool(comm, blocks, 16 << 20);
  train(comm, pool);
  EXPECT_EQ(below.stats().local_live_bytes, (3u * 16 + 2) << 20);
  ASSERT_OK(fsccl_pool_destroy(pool));
  EXPECT_EQ(below.stats().local_live_bytes, 0u);
  EXPECT_OK(blocks.destroy(blocks.context));
}

// A source that cannot be used is an error on every rank, and no rank waits. The error is the
// rank's own, or that of the rank that has the source.
TEST(PoolSource, SourcesThatCannotBe) {
  outside_source_t source;
  fsccl_allocator_t outside;
  outside_source_init(&source, size_t{1} << 40, 1, &outside);
  run_ranks(2, [&](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    fsccl_pool_t pool = nullptr;
    const SourceStack guarded("host", {"guard", "limit"});
    const auto expect = [&](fsccl_status_t code, const char* words, int rank) {
      const fsccl_status_t status = fsccl_pool_create(self.comm, &config, &pool);
      EXPECT_LT(status, 0);
      if (self.rank != rank) return;
      EXPECT_EQ(status, code) << explain(status);
      EXPECT_THAT(explain(status), ::testing::HasSubstr(words));
    };
    config.limit_bytes = 16 << 20;
    for (const int rank : {0, 1}) {
      config.source = self.rank == rank ? &guarded.top() : nullptr;
      expect(FSCCL_ERR_INVALID_ARGUMENT, "guard cannot be in the source of a pool", rank);
      config.source = self.rank == rank ? &outside : nullptr;
      expect(FSCCL_ERR_INVALID_ARGUMENT, "all or none", 1);
    }
    fsccl_allocator_t device = outside;
    device.memory = FSCCL_MEMORY_CUDA;
    config.source = &device;
    expect(FSCCL_ERR_INVALID_ARGUMENT, "device memory", self.rank);
    fsccl_allocator_t broken = outside;
    broken.allocate = nullptr;
    config.source = &broken;
    expect(FSCCL_ERR_INVALID_ARGUMENT, "no function allocate", self.rank);
    if (self.rank == 0) source.answer = OUTSIDE_NO_FILE;
    config.source = &outside;
    expect(FSCCL_ERR_INVALID_STATE, "shared descriptor -1", 0);
    const PoolScope usual(self.comm);
    train(self.comm, usual.get());
  });
  EXPECT_EQ(source.out, 0u);
}

}  // namespace
}  // namespace fsccl::testing
