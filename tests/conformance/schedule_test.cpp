// Runs many steps of several units whose slots are taken, given back and taken again while ranks
// run at different speeds. Contents are always those of the right unit and version, addresses are
// stable, steady steps ask for no memory, and replicas agree.
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

struct Model {
  Model(const Rank& self, fsccl_pool_t pool, size_t units, fsccl_sharing_t sharing,
        fsccl_keep_t keep = FSCCL_KEEP_NONE) {
    for (size_t i = 0; i < units; ++i) {
      UnitCase c = simple_unit(
          {{static_cast<int64_t>(17 + 40 * i), 31}, {static_cast<int64_t>(5 + i)}}, 100 + i);
      c.layout = i % 2 ? FSCCL_LAYOUT_FLAT : FSCCL_LAYOUT_PER_PARAM;
      c.sharing = sharing;
      c.keep = keep;
      list.emplace_back(c, self.comm, pool);
      list.back().write_shards(1);
    }
  }
  std::vector<fsccl_event_t> events() {
    std::vector<fsccl_event_t> result;
    for (TestUnit& unit : list) {
      result.push_back({FSCCL_EVENT_UNSHARD, unit.get(), 0, 0});
      result.push_back({FSCCL_EVENT_RESHARD, unit.get(), 0, 0});
    }
    for (auto unit = list.rbegin(); unit != list.rend(); ++unit)
      for (const auto kind :
           {FSCCL_EVENT_UNSHARD, FSCCL_EVENT_GRAD, FSCCL_EVENT_RESHARD, FSCCL_EVENT_REDUCE})
        result.push_back({kind, unit->get(), 0, 0});
    return result;
  }
  std::deque<TestUnit> list;
};

// Runs one unit after the other, forward and backward, and notes the addresses of the parameters.
std::vector<const void*> plain_step(Model& model, uint64_t step, const Rank& self, Random& pace) {
  std::vector<const void*> addresses;
  for (TestUnit& unit : model.list) {
    unit.unshard();
    dawdle(pace);
    unit.check_params(step);
    addresses.push_back(unit.address(0));
    unit.reshard();
  }
  for (auto unit = model.list.rbegin(); unit != model.list.rend(); ++unit) {
    unit->unshard();
    unit->check_params(step);
    addresses.push_back(unit->address(0));
    unit->write_grads(step, self.rank);
    dawdle(pace);
    unit->reshard();
    unit->reduce(nullptr);
    unit->check_sharded_grads({{step}});
    unit->write_shards(step + 1);
  }
  return addresses;
}

class Schedule : public ::testing::TestWithParam<fsccl_sharing_t> {};

TEST_P(Schedule, AddressesAreStableFromTheSecondStep) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    Model model(self, pool.get(), 4, GetParam());
    Random pace(static_cast<uint64_t>(self.rank));
    std::vector<const void*> second;
    fsccl_pool_stats_t steady{};
    for (uint64_t step = 1; step <= 6 && !HasFailure(); ++step) {
      const std::vector<const void*> now = plain_step(model, step, self, pace);
      ASSERT_OK(fsccl_pool_step(pool.get()));
      if (step == 1) continue;
      if (step == 2) second = now;
      EXPECT_EQ(now, second) << "step " << step;
      for (size_t i = 0; i < now.size(); ++i)
        EXPECT_EQ(now[i], now[now.size() - 1 - i]) << "backward as forward";
      if (step == 3) steady = pool.stats();
      if (step > 3) {
        EXPECT_EQ(pool.stats().growths, steady.growths);
        EXPECT_EQ(pool.stats().reserved_bytes, steady.reserved_bytes);
        EXPECT_EQ(pool.stats().plan_misses, steady.plan_misses);
        EXPECT_GT(pool.stats().plan_hits, steady.plan_hits);
      }
    }
  });
}

TEST_P(Schedule, AddressesAreStableFromTheFirstStepWhenDeclared) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const fsccl_keep_t keep : {FSCCL_KEEP_NONE, FSCCL_KEEP_ALWAYS}) {
      Model model(self, pool.get(), 4, GetParam(), keep);
      Random pace(static_cast<uint64_t>(self.rank));
      const std::vector<fsccl_event_t> events = model.events();
      ASSERT_OK(fsccl_pool_schedule(pool.get(), events.data(), events.size()));
      const fsccl_pool_stats_t before = pool.stats();
      EXPECT_GT(before.planned_bytes, 0u);
      EXPECT_GE(before.planned_bytes, before.plan_bound_bytes);
      std::vector<const void*> first;
      for (uint64_t step = 1; step <= 4 && !HasFailure(); ++step) {
        const std::vector<const void*> now = plain_step(model, step, self, pace);
        ASSERT_OK(fsccl_pool_step(pool.get()));
        if (step == 1) first = now;
        EXPECT_EQ(now, first) << "step " << step << " keep " << keep;
        for (size_t i = 0; i < now.size(); ++i) EXPECT_EQ(now[i], now[now.size() - 1 - i]);
      }
      EXPECT_EQ(pool.stats().growths, before.growths);
      EXPECT_EQ(pool.stats().plan_misses, before.plan_misses);
    }
  });
}

TEST_P(Schedule, DeviatingStepsAreServedAndCounted) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    Model model(self, pool.get(), 3, GetParam());
    Random pace(static_cast<uint64_t>(self.rank)), random(4);
    uint64_t version = 1;
    for (int i = 0; i < 25 && !HasFailure(); ++i) {
      const uint64_t what = random.below(4);
      if (what < 2) {
        plain_step(model, version++, self, pace);
      } else {  // stands for an evaluation, with several units unsharded at once
        const size_t first = random.below(3);
        for (size_t k = 0; k < 3; ++k) model.list[(first + k) % 3].unshard();
        for (TestUnit& unit : model.list) unit.check_params(version);
        for (TestUnit& unit : model.list) unit.reshard();
        if (what == 3) {
          for (TestUnit& unit : model.list)
            unit.unshard(FSCCL_UNSHARD_WRITABLE), unit.write_params(77), unit.reshard();
        }
      }
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
    EXPECT_EQ(pool.stats().collective_live_bytes, 0u);
  });
}

// Runs steps in which the next unit is gathered while one is in use, and the gradients of a unit
// are reduced while the unit before it is in use. So works are always in flight, and ranks run as
// far apart as the library lets them.
void overlapped_steps(const Rank& self, fsccl_pool_t pool, fsccl_sharing_t sharing,
                      fsccl_keep_t keep, uint64_t steps) {
  Model model(self, pool, 4, sharing, keep);
  Random pace(mix(static_cast<uint64_t>(self.rank), steps));
  const size_t n = model.list.size();
  std::vector<fsccl_work_t> gathered(n), reduced(n);
  auto start = [&](size_t i) {
    ASSERT_GE(fsccl_unit_unshard(model.list[i].get(), FSCCL_UNSHARD_READ, nullptr, &gathered[i]),
              0);
  };
  for (uint64_t step = 1; step <= steps && !::testing::Test::HasFailure(); ++step) {
    start(0);
    for (size_t i = 0; i < n; ++i) {
      if (i + 1 < n) start(i + 1);
      dawdle(pace);
      ASSERT_OK(fsccl_work_wait(gathered[i], -1));
      model.list[i].check_params(step);
      if (i + 1 < n) model.list[i].reshard();
    }
    for (size_t i = n; i-- > 0;) {
      if (i > 0) start(i - 1);
      if (i + 1 < n) {
        ASSERT_OK(fsccl_work_wait(gathered[i], -1));
      }
      model.list[i].check_params(step);
      model.list[i].write_grads(step, self.rank);
      dawdle(pace);
      model.list[i].reshard();
      model.list[i].reduce(nullptr, &reduced[i]);
    }
    for (size_t i = n; i-- > 0;) {
      ASSERT_OK(fsccl_work_wait(reduced[i], -1));
      model.list[i].check_sharded_grads({{step}});
      model.list[i].write_shards(step + 1);
      dawdle(pace);
    }
    ASSERT_OK(fsccl_pool_step(pool));
  }
}

TEST_P(Schedule, PrefetchAndOverlappedReductions) {
  for (const int ranks : {2, 3, 4})
    for (const fsccl_keep_t keep : {FSCCL_KEEP_NONE, FSCCL_KEEP_ALWAYS})
      run_ranks(ranks, [keep](Rank& self) {
        const PoolScope pool(self.comm);
        overlapped_steps(self, pool.get(), GetParam(), keep, 12);
      });
}

// Two units use one slot, which is taken and given back as fast as possible. A rank that is ahead
// must not write what another rank still reads.
TEST_P(Schedule, SlotsAreNotReusedTooEarly) {
  run_ranks(4, [](Rank& self) {
    const PoolScope pool(self.comm);
    UnitCase c = simple_unit({{64, 8}});
    c.sharing = GetParam();
    std::deque<TestUnit> units;
    for (uint64_t i = 0; i < 2; ++i) {
      c.seed = i;
      units.emplace_back(c, self.comm, pool.get());
      units.back().write_shards(1);
    }
    Random pace(static_cast<uint64_t>(self.rank)), random(2);
    for (uint64_t round = 1; round <= 1500 && !HasFailure(); ++round) {
      TestUnit& unit = units[random.below(2)];
      unit.unshard();
      dawdle(pace);
      unit.check_params(1);
      unit.reshard();
      if (random.below(4) == 0) {
        unit.write_grads(round, self.rank);
        dawdle(pace);
        unit.reduce(nullptr);
        unit.check_sharded_grads({{round}});
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Schedule,
                         ::testing::Values(FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE),
                         [](const auto& one) {
                           return one.param == FSCCL_SHARING_PRIVATE ? "Private" : "ReadOnly";
                         });

TEST(Schedules, WrongOnesAreRefused) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm), other(self.comm);
    TestUnit unit(simple_unit({{8}}), self.comm, pool.get()),
        foreign(simple_unit({{8}}), self.comm, other.get());
    auto schedule = [&](std::vector<fsccl_event_t> events) {
      return fsccl_pool_schedule(pool.get(), events.data(), events.size());
    };
    const fsccl_unit_t u = unit.get();
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {FSCCL_EVENT_UNSHARD, u, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "held already");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_RESHARD, u, 0, 0}}), FSCCL_ERR_INVALID_ARGUMENT,
                 "not held");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_REDUCE, u, 0, 0}}), FSCCL_ERR_INVALID_ARGUMENT, "not held");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_GRAD, u, 0, 0}, {FSCCL_EVENT_GRAD, u, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "event 1", "held already", "gradients");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {FSCCL_EVENT_REDUCE, u, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "event 1", "not held", "gradients");
    UnitCase keeps = simple_unit({{8}}, 9);
    keeps.keep = FSCCL_KEEP_ALWAYS;
    TestUnit kept(keeps, self.comm, pool.get());
    const fsccl_unit_t k = kept.get();
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, k, 0, 0}, {FSCCL_EVENT_UNSHARD, k, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "held already");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, k, 0, 0},
                           {FSCCL_EVENT_RESHARD, k, 0, 0},
                           {FSCCL_EVENT_RESHARD, k, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "event 2", "not held");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, nullptr, 0, 0}}), FSCCL_ERR_INVALID_HANDLE,
                 "event 0");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {wild<fsccl_event_kind_t>(9), u, 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "event 1");
    EXPECT_ERROR(schedule({{FSCCL_EVENT_UNSHARD, foreign.get(), 0, 0},
                           {FSCCL_EVENT_RESHARD, foreign.get(), 0, 0}}),
                 FSCCL_ERR_INVALID_ARGUMENT, "another pool");
    EXPECT_ERROR(fsccl_pool_schedule(pool.get(), nullptr, 3), FSCCL_ERR_INVALID_ARGUMENT, "NULL");
    unit.write_shards(1);
    unit.unshard();
    // The schedule is declared at an odd moment, which is harmless.
    EXPECT_OK(schedule({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {FSCCL_EVENT_RESHARD, u, 0, 0}}));
    unit.check_params(1);
    unit.reshard();
    EXPECT_OK(schedule({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {FSCCL_EVENT_RESHARD, u, 0, 0}}));
    EXPECT_OK(schedule({}));
    unit.unshard();
    unit.check_params(1);
    unit.reshard();
  });
}

TEST(ScheduledPools, RecordOffStaysWithoutAPlan) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm, 0, false);
    Model model(self, pool.get(), 3, FSCCL_SHARING_READ_ONLY);
    Random pace(0);
    for (uint64_t step = 1; step <= 3; ++step) {
      plain_step(model, step, self, pace);
      ASSERT_OK(fsccl_pool_step(pool.get()));
    }
    EXPECT_EQ(pool.stats().planned_bytes, 0u);
    EXPECT_EQ(pool.stats().steps, 3u);
  });
}

TEST(ScheduledPools, BlocksKeepTheirContentsAndCountRight) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(static_cast<uint64_t>(self.rank) + 1);  // each rank makes other allocations
    struct Held {
      char* data;
      size_t bytes;
      char value;
    };
    std::vector<Held> blocks;
    uint64_t allocations = 0;
    for (int i = 0; i < 3000 && !HasFailure(); ++i) {
      if (blocks.size() < 50 && random.below(2)) {
        void* data = nullptr;
        const size_t bytes = random.below(random.below(10) ? 500 : 300'000);
        ASSERT_OK(fsccl_pool_alloc(pool.get(), bytes, nullptr, &data));
        ASSERT_NE(data, nullptr);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (bytes >= 65536 ? 4096 : 64), 0u);
        blocks.push_back({static_cast<char*>(data), bytes, static_cast<char>(random.next())});
        std::fill_n(blocks.back().data, bytes, blocks.back().value);
        allocations++;
      } else if (!blocks.empty()) {
        const size_t which = random.below(blocks.size());
        const Held block = blocks[which];
        EXPECT_TRUE(std::all_of(block.data, block.data + block.bytes,
                                [&](char c) { return c == block.value; }));
        ASSERT_OK(fsccl_pool_free(pool.get(), block.data, nullptr));
        blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(which));
      }
      if (random.below(200) == 0) {
        uint64_t released = 0;
        ASSERT_OK(fsccl_pool_trim(pool.get(), &released));
      }
    }
    for (const Held& block : blocks) ASSERT_OK(fsccl_pool_free(pool.get(), block.data, nullptr));
    EXPECT_OK(fsccl_pool_free(pool.get(), nullptr, nullptr));
    const fsccl_pool_stats_t stats = pool.stats();
    EXPECT_EQ(stats.live_bytes, 0u);
    EXPECT_EQ(stats.allocations, allocations);
    EXPECT_EQ(stats.frees, allocations);
    EXPECT_GE(stats.live_peak_bytes, stats.local_peak_bytes);
  });
}

}  // namespace
}  // namespace fsccl::testing
