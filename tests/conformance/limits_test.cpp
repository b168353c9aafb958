// Tests a pool that is short of memory: the memory that it gives back, the callers that it asks,
// and the text of its refusal.
#include <deque>
#include <list>
#include <stdexcept>
#include <vector>

#include "fsccl/insight.h"
#include "mesh.h"
#include "tests/stand_in/cuda/control.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// A process that has started CUDA's driver cannot use the driver in a child of a fork. So a pool in
// host memory must not call the driver.
TEST(Pools, OnAHostDoNotStartTheDriverOfGpus) {
  const stand_in::Control driver;
  const uint64_t calls = driver.calls();
  run_ranks(2, [](Rank& self) { const PoolScope pool(self.comm); });
  EXPECT_EQ(driver.calls(), calls);
}

// Gathers a unit that fits, and gives it back.
void use_small_unit(fsccl_comm_t comm, fsccl_pool_t pool) {
  TestUnit small(simple_unit({{100}}), comm, pool);
  small.write_shards(1);
  small.unshard();
  small.check_params(1);
  small.reshard();
}

TEST(Pools, ALimitIsNamedAndEverythingGoesOn) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm, 8 << 20);
    void* block = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(pool.get(), 16 << 20, nullptr, &block), FSCCL_ERR_OUT_OF_MEMORY,
                 "limit", "FSCCL_POOL_LIMIT");
    EXPECT_EQ(pool.stats().live_bytes, 0u);
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 4 << 20, nullptr, &block));
    EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    // The unit's own shards do not fit. That is an error on every rank, and the pool is as before.
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = self.comm;
    config.pool = pool.get();
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1;
    param.shape[0] = 1 << 22;
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_OUT_OF_MEMORY, "limit");
    EXPECT_EQ(pool.stats().live_bytes, 0u);
    // The shards do not fit on one rank alone.
    if (self.rank == 1) {
      ASSERT_OK(fsccl_pool_alloc(pool.get(), 6 << 20, nullptr, &block));
    }
    param.shape[0] = 1 << 20;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_OUT_OF_MEMORY,
                 self.rank == 1 ? "limit" : "rank 1");
    if (self.rank == 1) {
      EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    }
    use_small_unit(self.comm, pool.get());
  });
}

// Returns a unit with shards of 1.5 MiB and parameters of 24 MiB, which meets the limit when it
// wants its slot.
UnitCase wide_unit() {
  UnitCase c = simple_unit({{3 << 20}});
  c.params[0].dtype = FSCCL_FLOAT16;
  c.params[0].frozen = true;
  c.wire = FSCCL_FLOAT64;
  return c;
}

TEST(Pools, ASlotBeyondTheLimitIsRefusedOnEveryRank) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    for (const int tight : {0, 1, 2})  // the smallest limit, this rank's, counts for all
      run_ranks(3, [=](Rank& self) {
        const PoolScope pool(self.comm, self.rank == tight ? 12 << 20 : 256 << 20);
        UnitCase c = wide_unit();
        c.sharing = sharing;
        TestUnit wide(c, self.comm, pool.get());
        EXPECT_ERROR(fsccl_unit_unshard(wide.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                     FSCCL_ERR_OUT_OF_MEMORY, "limit of 12582912", "FSCCL_POOL_LIMIT");
        const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, wide.get(), 0, 0},
                                        {FSCCL_EVENT_RESHARD, wide.get(), 0, 0}};
        EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events, 2), FSCCL_ERR_OUT_OF_MEMORY, "limit");
        use_small_unit(self.comm, pool.get());
      });
}

// The pool's ranks 2 and 3 share slots under rank 2, although a slot of all ranks, which would have
// lain under rank 0, was refused before.
TEST(Pools, AfterARefusedSlotAnotherGroupMayShareSlots) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    const PoolScope pool(self.comm, 12 << 20);
    TestUnit wide(wide_unit(), self.comm, pool.get());
    EXPECT_ERROR(fsccl_unit_unshard(wide.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_OUT_OF_MEMORY, "limit of 12582912");
    const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, wide.get(), 0, 0},
                                    {FSCCL_EVENT_RESHARD, wide.get(), 0, 0}};
    EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events, 2), FSCCL_ERR_OUT_OF_MEMORY, "limit");
    use_small_unit(mesh.shard, pool.get());
  });
}

// A block of one rank is in the way of a slot. All ranks get the error and nothing has changed;
// once the block is freed, the slot can be taken.
TEST(Pools, ABlockInTheWayOfASlotIsEverybodysError) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    run_ranks(3, [=](Rank& self) {
      const PoolScope pool(self.comm, 64 << 20);
      UnitCase c = wide_unit();
      c.sharing = sharing;
      TestUnit wide(c, self.comm, pool.get());
      wide.write_shards(1);
      void* block = nullptr;
      if (self.rank == 1) {
        ASSERT_OK(fsccl_pool_alloc(pool.get(), 50 << 20, nullptr, &block));
      }
      const uint64_t live = pool.stats().live_bytes, reserved = pool.stats().reserved_bytes;
      for (int i = 0; i < 3; i++)
        EXPECT_ERROR(fsccl_unit_unshard(wide.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                     FSCCL_ERR_OUT_OF_MEMORY, "of rank 1", "limit");
      EXPECT_EQ(pool.stats().live_bytes, live);
      EXPECT_EQ(pool.stats().reserved_bytes, reserved);
      EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
      wide.unshard();
      wide.check_params(1);
      wide.reshard();
    });
}

// A schedule that one rank has no memory for is refused on all ranks, and the steps go on without
// it.
TEST(Pools, ABlockInTheWayOfAScheduleIsEverybodysError) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm, 64 << 20);
    TestUnit wide(wide_unit(), self.comm, pool.get());
    wide.write_shards(1);
    void* block = nullptr;
    if (self.rank == 2) {
      ASSERT_OK(fsccl_pool_alloc(pool.get(), 50 << 20, nullptr, &block));
    }
    const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, wide.get(), 0, 0},
                                    {FSCCL_EVENT_RESHARD, wide.get(), 0, 0}};
    EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events, 2), FSCCL_ERR_OUT_OF_MEMORY, "of rank 2",
                 "limit");
    EXPECT_EQ(pool.stats().planned_bytes, 0u);
    EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    for (int i = 0; i < 2; i++) {
      wide.unshard();
      wide.check_params(1);
      wide.reshard();
      EXPECT_OK(fsccl_pool_schedule(pool.get(), events, 2));
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
  });
}

// A limit that is no multiple of a page, or of a huge page, can be used to its last whole page, for
// blocks and for slots of both kinds.
TEST(Pools, ALimitIsUsableUpToItself) {
  constexpr uint64_t kLimit = (5 << 20) + 5 * 4096 + 1000, kPages = kLimit / 4096 * 4096;
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    run_ranks(2, [=](Rank& self) {
      const PoolScope pool(self.comm, kLimit);
      void* block = nullptr;
      ASSERT_OK(fsccl_pool_alloc(pool.get(), kPages, nullptr, &block));
      EXPECT_EQ(pool.stats().reserved_bytes, kPages);
      EXPECT_OK(fsccl_pool_free(pool.get(), block, nullptr));
      EXPECT_ERROR(fsccl_pool_alloc(pool.get(), kPages + 1, nullptr, &block),
                   FSCCL_ERR_OUT_OF_MEMORY, "limit");
      uint64_t released = 0;
      EXPECT_OK(fsccl_pool_trim(pool.get(), &released));
      UnitCase c = simple_unit({{static_cast<int64_t>(kPages / 8)}});
      c.params[0].dtype = c.wire = FSCCL_FLOAT64;
      c.params[0].frozen = c.params[0].own_shard = true;
      c.sharing = sharing;
      TestUnit unit(c, self.comm, pool.get());
      unit.write_shards(1);
      for (int step = 0; step < 3; step++) {
        unit.unshard();
        unit.check_params(1);
        unit.reshard();
        ASSERT_OK(fsccl_pool_step(pool.get()));
      }
    });
}

// A pool of one rank that asks its program for memory.
struct Pressed {
  fsccl_pool_t pool = nullptr;
  std::vector<void*> blocks;    // the program gives one up each time that it is asked
  std::vector<uint64_t> asked;  // the bytes of each request
  size_t bytes = 0;             // bytes of a block
  static uint64_t give_up(void* context, fsccl_pool_t pool, uint64_t bytes) {
    auto& self = *static_cast<Pressed*>(context);
    EXPECT_EQ(pool, self.pool);
    self.asked.push_back(bytes);
    if (self.blocks.empty()) return 0;
    EXPECT_OK(fsccl_pool_free(pool, self.blocks.back(), nullptr));
    self.blocks.pop_back();
    return self.bytes;
  }
  Pressed(fsccl_comm_t comm, uint64_t limit, uint64_t soft) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = limit;
    config.soft_limit_bytes = soft;
    config.on_pressure = give_up;
    config.on_pressure_context = this;
    EXPECT_OK(fsccl_pool_create(comm, &config, &pool));
  }
  ~Pressed() {
    for (void* block : blocks) EXPECT_OK(fsccl_pool_free(pool, block, nullptr));
    EXPECT_OK(fsccl_pool_destroy(pool));
  }
  void* take(size_t size) {
    void* block = nullptr;
    EXPECT_OK(fsccl_pool_alloc(pool, size, nullptr, &block));
    return block;
  }
  fsccl_pool_stats_t stats() const {
    fsccl_pool_stats_t result = FSCCL_POOL_STATS_INIT;
    EXPECT_OK(fsccl_pool_stats(pool, &result));
    return result;
  }
};

constexpr size_t kMiB = 1 << 20;

// A limit with which the computation of sizes would overflow is refused on all ranks, even if only
// one rank gives it. The largest one that is accepted is more than there are addresses for.
TEST(Limits, OneBeyondAnyMachineIsRefused) {
  run_ranks(2, [](Rank& self) {
    for (const uint64_t limit :
         {UINT64_MAX, UINT64_MAX - (1 << 21), UINT64_MAX / 3 + 1, (uint64_t{1} << 46) + 1})
      for (const int rehearsal : {0, 1})
        for (const int giver : {0, 1}) {
          fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
          config.limit_bytes = self.rank == giver ? limit : 16 * kMiB;
          config.dry_run = rehearsal;
          fsccl_pool_t pool = nullptr;
          const fsccl_status_t status = fsccl_pool_create(self.comm, &config, &pool);
          if (self.rank == giver) {
            EXPECT_ERROR(status, FSCCL_ERR_INVALID_ARGUMENT, "limit_bytes", "70368744177664",
                         "FSCCL_POOL_LIMIT");
          } else {
            EXPECT_NE(status, FSCCL_OK);
          }
        }
    const PoolScope pool(self.comm, 16 * kMiB);  // the communicator works as before
    EXPECT_EQ(pool.stats().limit_bytes, 16 * kMiB);
  });
}

TEST(Limits, TheProgramIsAskedBeforeTheLimitRefuses) {
  run_ranks(2, [](Rank& self) {
    Pressed pressed(self.comm, 16 * kMiB, 0);
    void* first = pressed.take(6 * kMiB);
    pressed.blocks = {pressed.take(4 * kMiB)};  // lies at the end, so its memory can be given back
    pressed.bytes = 4 * kMiB;
    // The unit's slot of 8 MiB does not fit beside 10 MiB of blocks.
    UnitCase c = simple_unit({{kMiB}});
    c.params[0].dtype = c.wire = FSCCL_FLOAT64;
    c.params[0].frozen = c.params[0].own_shard = true;
    TestUnit unit(c, self.comm, pressed.pool);
    unit.write_shards(1);
    unit.unshard();
    unit.check_params(1);
    unit.reshard();
    EXPECT_EQ(pressed.asked, std::vector<uint64_t>{2 * kMiB});
    EXPECT_TRUE(pressed.blocks.empty());
    void* block = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(pressed.pool, 4 * kMiB, nullptr, &block), FSCCL_ERR_OUT_OF_MEMORY,
                 "its limit of 16777216", "at least 18874368");
    EXPECT_EQ(pressed.asked.size(), 2u);  // the program was asked once more, and had nothing
    EXPECT_OK(fsccl_pool_free(pressed.pool, first, nullptr));
  });
}

TEST(Limits, BeyondTheSoftLimitTheProgramIsAskedAndNothingRefused) {
  run_ranks(1, [](Rank& self) {
    Pressed pressed(self.comm, 64 * kMiB, 8 * kMiB);
    void* low = pressed.take(6 * kMiB);
    EXPECT_TRUE(pressed.asked.empty());
    void* high = pressed.take(10 * kMiB);
    EXPECT_EQ(pressed.asked, std::vector<uint64_t>{8 * kMiB});
    EXPECT_OK(fsccl_pool_free(pressed.pool, high, nullptr));
    EXPECT_EQ(pressed.stats().reserved_bytes, 16 * kMiB);
    EXPECT_OK(fsccl_pool_step(pressed.pool));  // gives unused memory back
    EXPECT_EQ(pressed.stats().reserved_bytes, 6 * kMiB);
    EXPECT_OK(fsccl_pool_free(pressed.pool, low, nullptr));
  });
}

// Three units keep their slots of 8 MiB, and the limit has two. The unit that has been idle for the
// longest time gives way, and is gathered again when it is wanted.
TEST(Limits, KeptSlotsGiveWay) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    run_ranks(3, [sharing](Rank& self) {
      const PoolScope pool(self.comm, self.rank == 1 ? 20 * kMiB : 256 * kMiB);
      UnitCase c = simple_unit({{kMiB}});
      c.params[0].dtype = c.wire = FSCCL_FLOAT64;
      c.params[0].frozen = c.params[0].own_shard = true;
      c.keep = FSCCL_KEEP_ALWAYS;
      c.sharing = sharing;
      std::list<TestUnit> units;
      for (int i = 0; i < 3; ++i) {
        c.seed = static_cast<uint64_t>(i) + 1;
        units.emplace_back(c, self.comm, pool.get()).write_shards(1);
      }
      for (int step = 0; step < 4; ++step) {
        for (TestUnit& unit : units) {
          unit.unshard();
          unit.check_params(1);
          unit.reshard();
        }
        ASSERT_OK(fsccl_pool_step(pool.get()));
      }
      EXPECT_LE(pool.stats().collective_live_bytes, 20 * kMiB);
      // Units in use do not give way.
      auto unit = units.begin();
      (unit++)->unshard(), (unit++)->unshard();
      EXPECT_ERROR(fsccl_unit_unshard(unit->get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                   FSCCL_ERR_OUT_OF_MEMORY, "limit of 20971520",
                   "8388608 bytes of parameters of unit 'unit 1', 8388608 bytes of parameters of "
                   "unit 'unit 2'");
      units.front().check_params(1);
      units.front().reshard();
      unit->unshard();
      unit->check_params(1);
    });
}

// An exception of the program's function counts as an answer that there is nothing to give back,
// and leaves nothing behind.
TEST(Limits, AnExceptionOfTheProgramLeavesNothingBehind) {
  run_ranks(2, [](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = 4 * kMiB;
    config.on_pressure = [](void*, fsccl_pool_t, uint64_t) -> uint64_t {
      throw std::runtime_error("no");
    };
    fsccl_pool_t pool = nullptr;
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
    void* block = nullptr;
    for (int i = 0; i < 3; i++)
      EXPECT_ERROR(fsccl_pool_alloc(pool, 100 * kMiB, nullptr, &block), FSCCL_ERR_OUT_OF_MEMORY,
                   "limit");
    EXPECT_OK(fsccl_pool_alloc(pool, 4 * kMiB, nullptr, &block));
    // This is a slot, for which rank 1 alone has no memory.
    if (self.rank == 0) {
      EXPECT_OK(fsccl_pool_free(pool, block, nullptr));
    }
    UnitCase c = simple_unit({{kMiB / 8}});
    c.params[0].dtype = c.wire = FSCCL_FLOAT64;
    c.params[0].frozen = c.params[0].own_shard = true;
    {
      TestUnit unit(c, self.comm, pool);
      unit.write_shards(1);
      EXPECT_ERROR(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                   FSCCL_ERR_OUT_OF_MEMORY, "of rank 1", "limit");
      if (self.rank == 1) {
        EXPECT_OK(fsccl_pool_free(pool, block, nullptr));
      }
      unit.unshard();
      unit.check_params(1);
      unit.reshard();
    }
    EXPECT_OK(fsccl_pool_destroy(pool));
  });
}

// A schedule that does not fit the limit is refused before its first step, and the error says how
// many bytes all its slots need together.
TEST(Limits, AScheduleThatDoesNotFitSaysWhatItNeeds) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm, 12 * kMiB);
    UnitCase c = simple_unit({{kMiB}});
    c.params[0].dtype = c.wire = c.reduce = c.grad = FSCCL_FLOAT64;
    c.params[0].own_shard = c.params[0].own_grad = true;
    TestUnit unit(c, self.comm, pool.get());
    const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, unit.get(), 0, 0},
                                    {FSCCL_EVENT_GRAD, unit.get(), 0, 0},
                                    {FSCCL_EVENT_RESHARD, unit.get(), 0, 0},
                                    {FSCCL_EVENT_REDUCE, unit.get(), 0, 0}};
    EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events, 4), FSCCL_ERR_OUT_OF_MEMORY,
                 "needs 16777216 bytes", "limit of 12582912");
    EXPECT_EQ(pool.stats().planned_bytes, 0u);
    EXPECT_EQ(pool.stats().reserved_bytes, 0u);
    unit.write_shards(1);
    unit.unshard();
    unit.check_params(1);
    unit.reshard();
  });
}

// Three schedules each use two of three units, 8 MiB a unit. Any two schedules fit 20 MiB together,
// but not all three, since a unit has one place in all schedules that are known. The first one
// gives way.
TEST(Limits, AScheduleThatIsKnownGivesWayToOneThatIsDeclared) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm, 20 * kMiB);
    UnitCase c = simple_unit({{kMiB}});
    c.params[0].dtype = c.wire = FSCCL_FLOAT64;
    c.params[0].frozen = c.params[0].own_shard = true;
    std::deque<TestUnit> units;
    for (int i = 0; i < 3; ++i) {
      c.seed = static_cast<uint64_t>(i) + 1;
      units.emplace_back(c, self.comm, pool.get()).write_shards(1);
    }
    for (const auto& [first, second] : {std::pair<size_t, size_t>{0, 1}, {1, 2}, {0, 2}}) {
      const fsccl_unit_t a = units[first].get(), b = units[second].get();
      const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, a, 0, 0},
                                      {FSCCL_EVENT_UNSHARD, b, 0, 0},
                                      {FSCCL_EVENT_RESHARD, a, 0, 0},
                                      {FSCCL_EVENT_RESHARD, b, 0, 0}};
      ASSERT_OK(fsccl_pool_schedule(pool.get(), events, 4));
      units[first].unshard(), units[second].unshard();
      units[first].check_params(1), units[second].check_params(1);
      units[first].reshard(), units[second].reshard();
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
    EXPECT_EQ(pool.stats().plan_misses, 0u);
    EXPECT_LE(pool.stats().reserved_bytes, 20 * kMiB);
  });
}

}  // namespace
}  // namespace fsccl::testing
