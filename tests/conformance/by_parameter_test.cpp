// Tests units with a slot for each parameter. Parameters are given back one by one, and gradients
// reduced one by one, before the whole unit is, and the memory in use falls each time. Values over
// all layouts, dtypes and kinds of sharing are tested with random units (units_test.cpp,
// step_test.cpp).
#include <algorithm>
#include <atomic>
#include <deque>
#include <thread>

#include "fsccl/insight.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// Slots of 2, 4 and 1 pages, for parameters and gradients (bfloat16).
UnitCase sliced(uint64_t seed = 1, fsccl_sharing_t sharing = FSCCL_SHARING_READ_ONLY) {
  UnitCase c = simple_unit({{4096}, {64, 128}, {2048}}, seed);
  c.by_parameter = true;
  c.sharing = sharing;
  return c;
}

fsccl_reduce_config_t range(size_t first, size_t count) {
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  config.first = first;
  config.count = count;
  return config;
}

TEST(ByParameter, ReleaseGivesBackOneSlot) {
  for (const fsccl_sharing_t sharing :
       {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE, FSCCL_SHARING_COPY_ON_WRITE})
    for (const fsccl_unshard_mode_t mode : {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE})
      run_ranks(3, [=](Rank& self) {
        const PoolScope pool(self.comm);
        TestUnit unit(sliced(1, sharing), self.comm, pool.get());
        unit.write_shards(1);
        const auto live = [&] { return pool.stats().collective_live_bytes / kPage; };
        for (int round = 0; round < 3; ++round) {
          unit.unshard(mode);
          EXPECT_EQ(live(), 7u);
          if (mode == FSCCL_UNSHARD_WRITABLE || sharing == FSCCL_SHARING_COPY_ON_WRITE)
            unit.write_params(50 + static_cast<uint64_t>(self.rank)),
                unit.check_params(50 + static_cast<uint64_t>(self.rank));
          ASSERT_OK(fsccl_unit_release(unit.get(), 1, nullptr));
          EXPECT_EQ(live(), 3u);
          unit.reshard();
          EXPECT_EQ(live(), 0u);
          unit.unshard();
          unit.check_params(1);
          for (const size_t i : {2, 0, 1}) ASSERT_OK(fsccl_unit_release(unit.get(), i, nullptr));
          EXPECT_EQ(live(), 0u);
          EXPECT_ERROR(fsccl_unit_unshard(unit.get(), mode, nullptr, nullptr),
                       FSCCL_ERR_INVALID_STATE, "reshard");
          unit.reshard();
        }
      });
}

TEST(ByParameter, CallsAtTheWrongMoment) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    UnitCase c = sliced();
    c.params.push_back(c.params[0]);
    c.params[3].tied_to = 0;
    TestUnit unit(c, self.comm, pool.get()),
        whole(simple_unit({{8}, {8}}, 2), self.comm, pool.get());
    unit.write_shards(1);
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_release(unit.get(), 0, nullptr), FSCCL_ERR_INVALID_STATE, "unshard it");
    whole.unshard();
    EXPECT_ERROR(fsccl_unit_release(whole.get(), 0, nullptr), FSCCL_ERR_INVALID_STATE, "one slot",
                 "by_parameter");
    whole.reshard();
    fsccl_reduce_config_t config = range(0, 1);
    whole.write_grads(1, self.rank);
    EXPECT_ERROR(fsccl_unit_reduce_grads(whole.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "one slot", "by_parameter");
    unit.unshard();
    EXPECT_ERROR(fsccl_unit_release(unit.get(), 4, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "4 parameters");
    ASSERT_OK(fsccl_unit_release(unit.get(), 3, nullptr));  // parameter 3 is tied to parameter 0
    EXPECT_ERROR(fsccl_unit_release(unit.get(), 0, nullptr), FSCCL_ERR_INVALID_STATE,
                 "was released");
    EXPECT_ERROR(fsccl_unit_param(unit.get(), 3, &view), FSCCL_ERR_INVALID_STATE, "was released");
    EXPECT_OK(fsccl_unit_param(unit.get(), 1, &view));
    unit.reshard();
    for (const auto& [first, count] :
         {std::pair<size_t, size_t>{4, 1}, {0, 5}, {2, 0}, {1, ~size_t{0}}}) {
      config = range(first, count);
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                   FSCCL_ERR_INVALID_ARGUMENT, "4 parameters");
    }
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "no gradients");
    unit.write_grad(1, 1, self.rank);
    config = range(1, 2);
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "no gradients", "parameter 2");
    config = range(1, 1);
    config.grads = unit.own_grads(1, self.rank);
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "grads = NULL");
    unit.reduce(nullptr);  // reduces the one gradient that was written
    unit.write_grad(3, 1, self.rank);
    unit.write_grad(2, 1, self.rank);
    EXPECT_EQ(pool.stats().collective_live_bytes, 3 * kPage + kPage);  // 1 page is of unit `whole`
    unit.reduce(nullptr);
    unit.check_sharded_grads({{1}});
    whole.reduce(nullptr);
  });
}

TEST(ByParameter, IsRefusedWithKeepAndWithReplicas) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    fsccl_comm_t alone = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank, 0, nullptr, &alone));
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1;
    param.shape[0] = 8;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = alone;
    config.pool = pool.get();
    config.by_parameter = 1;
    config.keep = FSCCL_KEEP_ALWAYS;
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                 "by_parameter", "FSCCL_KEEP_NONE");
    config.keep = FSCCL_KEEP_NONE;
    config.replicate_comm = self.comm;
    EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                 "by_parameter", "replicate_comm");
    EXPECT_OK(fsccl_comm_destroy(alone));
  });
}

// The sums and the norm equal those of the unit with one slot bit for bit. The norms of the parts
// add up to that norm, but for the rounding of their sum.
TEST(ByParameter, TheSameBitsAsWithOneSlot) {
  for (const fsccl_layout_t layout :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    run_ranks(3, [layout](Rank& self) {
      const PoolScope pool(self.comm);
      UnitCase c = simple_unit({{101, 97}, {13'001}, {7}});
      c.layout = layout;
      TestUnit whole(c, self.comm, pool.get());
      c.by_parameter = true;
      TestUnit all(c, self.comm, pool.get()), parts(c, self.comm, pool.get());
      std::vector<fsccl_reduce_result_t> results(3);
      std::vector<fsccl_reduce_result_t> part(2);
      for (uint64_t step = 1; step <= 2; ++step) {
        size_t next = 0;
        for (TestUnit* unit : {&whole, &all}) {
          fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
          config.result = &results[next++];
          config.accumulate = step == 2;
          unit->write_grads(step, self.rank);
          unit->reduce(&config);
        }
        parts.write_grads(step, self.rank);
        for (const size_t first : {size_t{1}, size_t{0}}) {
          fsccl_reduce_config_t config = range(first, first ? 2 : 1);
          config.result = &part[first];
          config.accumulate = step == 2;
          parts.reduce(&config);
        }
        for (size_t i = 0; i < whole.size(); ++i) {
          fsccl_view_t wanted{}, got{};
          ASSERT_OK(fsccl_unit_sharded_grad(whole.get(), i, &wanted));
          for (TestUnit* unit : {&all, &parts}) {
            ASSERT_OK(fsccl_unit_sharded_grad(unit->get(), i, &got));
            ASSERT_EQ(got.count, wanted.count);
            EXPECT_TRUE(got.count == 0 ||
                        std::memcmp(got.data, wanted.data, got.count * sizeof(float)) == 0);
          }
        }
        EXPECT_EQ(std::memcmp(&results[0].norm_squared, &results[1].norm_squared, sizeof(double)),
                  0);
        const double sum = part[0].norm_squared + part[1].norm_squared;
        EXPECT_NEAR(sum, results[0].norm_squared, 1e-14 * sum);
      }
    });
}

// Reductions of several parameters are in flight at once, and meanwhile the memory of another
// gradient can be written.
TEST(ByParameter, ReductionsOverlap) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    static std::atomic<int> turn;
    if (self.rank == 0) turn = 0;
    TestUnit unit(sliced(), self.comm, pool.get());
    for (const size_t i : {2, 1}) unit.write_grad(i, 1, self.rank);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 1) {
      while (turn.load() == 0) std::this_thread::yield();
      for (const size_t i : {2, 1}) {
        const fsccl_reduce_config_t config = range(i, 1);
        unit.reduce(&config);
      }
    } else {
      fsccl_view_t view{};
      fsccl_work_t works[2] = {};
      for (const size_t i : {2, 1}) {
        const fsccl_reduce_config_t config = range(i, 1);
        EXPECT_EQ(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, &works[i - 1]),
                  FSCCL_IN_PROGRESS);
      }
      for (const size_t i : {1, 2})
        EXPECT_ERROR(fsccl_unit_sharded_grad(unit.get(), i, &view), FSCCL_ERR_INVALID_STATE,
                     "wait for the work");
      EXPECT_OK(fsccl_unit_sharded_grad(unit.get(), 0, &view));  // not among the reductions
      EXPECT_ERROR(fsccl_unit_destroy(unit.get()), FSCCL_ERR_INVALID_STATE, "in flight");
      turn = 1;
      for (const fsccl_work_t work : works) ASSERT_OK(fsccl_work_wait(work, -1));
    }
    unit.write_grad(0, 1, self.rank);
    unit.reduce(nullptr);
    unit.check_sharded_grads({{1}});
  });
}

// A reduction for which memory is short leaves the unit as it was, and can be made again.
TEST(ByParameter, AReductionWithoutMemoryTakesNoSlots) {
  constexpr uint64_t kMiB = 1 << 20;
  run_ranks(2, [](Rank& self) {
    // Shards and sharded gradients take 48 MiB on each rank, and each gradient takes a slot of 8.
    const PoolScope pool(self.comm, 76 * kMiB);
    UnitCase c = simple_unit({{4 << 20}, {4 << 20}, {4 << 20}});
    c.by_parameter = true;
    TestUnit unit(c, self.comm, pool.get());
    void* block = nullptr;
    ASSERT_OK(fsccl_pool_alloc(pool.get(), 8 * kMiB, nullptr, &block));
    fsccl_reduce_config_t config = range(0, 3);
    config.grads = unit.own_grads(1, self.rank);
    const uint64_t before = pool.stats().collective_live_bytes;
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_OUT_OF_MEMORY, "limit");
    EXPECT_EQ(pool.stats().collective_live_bytes, before);
    ASSERT_OK(fsccl_pool_free(pool.get(), block, nullptr));
    unit.reduce(&config);
    unit.check_sharded_grads({{1}});
  });
}

// While a reduction is in flight, more parameters are given back than the pool counts at once. The
// thread waits for the reduction then.
TEST(ByParameter, ManyReleasesBesideAReduction) {
  constexpr size_t kMany = 4200;
  run_ranks(2, [](Rank& self) {
    static std::atomic<size_t> given_back;
    if (self.rank == 0) given_back = 0;
    const PoolScope pool(self.comm);
    TestUnit reduced(sliced(), self.comm, pool.get());
    UnitCase c = simple_unit(std::vector<std::vector<int64_t>>(kMany, {2}), 2);
    c.by_parameter = true;
    TestUnit unit(c, self.comm, pool.get());
    unit.write_shards(1);
    unit.unshard();
    reduced.write_grad(0, 1, self.rank);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    const fsccl_reduce_config_t config = range(0, 1);
    fsccl_work_t work = nullptr;
    // Rank 1 is late. Rank 0 gives back what it can meanwhile.
    for (int turns = 0; self.rank == 1 && turns<100'000; turns += given_back> kMany - 300)
      std::this_thread::yield();
    reduced.reduce(&config, &work);
    for (size_t i = 0; i < kMany; ++i) {
      ASSERT_OK(fsccl_unit_release(unit.get(), i, nullptr));
      if (self.rank == 0) given_back = i;
    }
    ASSERT_OK(fsccl_work_wait(work, -1));
    unit.reshard();
    unit.unshard();  // waits for every release of the other rank
    unit.check_params(1);
    unit.reshard();
  });
}

TEST(ByParameter, DestroyGivesSlotsBackInAnyState) {
  for (const fsccl_sharing_t sharing :
       {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE, FSCCL_SHARING_COPY_ON_WRITE})
    for (const fsccl_unshard_mode_t mode : {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE})
      run_ranks(2, [=](Rank& self) {
        const PoolScope pool(self.comm);
        for (uint64_t round = 0; round < 4; ++round) {
          TestUnit unit(sliced(1, sharing), self.comm, pool.get());
          unit.write_shards(1);
          unit.unshard(mode);
          for (uint64_t i = 0; i < round; ++i)
            ASSERT_OK(fsccl_unit_release(unit.get(), i, nullptr));
          unit.write_grad(round % 3, 1, self.rank);
          if (round == 2) unit.reduce(nullptr);
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        }
        EXPECT_EQ(pool.stats().live_bytes, 0u);
      });
}

TEST(ByParameter, RanksThatReduceOtherParametersAreToldWhich) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(sliced(), self.comm, pool.get());
    unit.write_grads(1, self.rank);
    const fsccl_reduce_config_t config = self.rank ? range(1, 2) : range(0, 1);
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr), FSCCL_ERR_MISMATCH,
                 "parameters 0 .. 0", "parameters 1 .. 2");
  });
}

TEST(ByParameter, RanksThatReleaseOtherParametersMismatch) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(sliced(), self.comm, pool.get());
    unit.write_shards(1);
    unit.unshard();
    ASSERT_OK(fsccl_unit_release(unit.get(), static_cast<size_t>(self.rank), nullptr));
    unit.reshard();
    EXPECT_ERROR(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_MISMATCH, "history");
  });
}

// --- schedules
// -------------------------------------------------------------------------------------------------

TEST(ByParameter, WrongSchedulesAreRefused) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(sliced(), self.comm, pool.get()),
        whole(simple_unit({{8}}, 2), self.comm, pool.get());
    const fsccl_unit_t u = unit.get(), w = whole.get();
    const auto refused = [&](std::vector<fsccl_event_t> events, const char* event,
                             const char* why) {
      EXPECT_ERROR(fsccl_pool_schedule(pool.get(), events.data(), events.size()),
                   FSCCL_ERR_INVALID_ARGUMENT, event, why);
    };
    refused({{FSCCL_EVENT_RELEASE, u, 0, 1}}, "event 0", "not held");
    refused({{FSCCL_EVENT_UNSHARD, u, 0, 1}}, "event 0", "whole");
    refused({{FSCCL_EVENT_UNSHARD, u, 0, 0},
             {FSCCL_EVENT_RELEASE, u, 1, 1},
             {FSCCL_EVENT_RELEASE, u, 0, 2}},
            "event 2", "parameter 1");
    refused({{FSCCL_EVENT_UNSHARD, u, 0, 0},
             {FSCCL_EVENT_RELEASE, u, 0, 3},
             {FSCCL_EVENT_UNSHARD, u, 0, 0}},
            "event 2", "held already");
    refused({{FSCCL_EVENT_UNSHARD, u, 0, 0}, {FSCCL_EVENT_RELEASE, u, 2, 2}}, "event 1",
            "3 parameters");
    refused({{FSCCL_EVENT_GRAD, u, 0, 1}, {FSCCL_EVENT_REDUCE, u, 1, 1}}, "event 1", "not held");
    refused({{FSCCL_EVENT_GRAD, u, 0, 1}, {FSCCL_EVENT_GRAD, u, 0, 2}}, "event 1", "held already");
    refused({{FSCCL_EVENT_UNSHARD, w, 0, 0}, {FSCCL_EVENT_RELEASE, w, 0, 0}}, "event 1",
            "one slot");
    refused({{FSCCL_EVENT_GRAD, w, 0, 1}}, "event 0", "one slot");
  });
}

// Returns the events of a backward pass that unshards each unit while the one before is in use. By
// parameter, it gives each parameter back when backward has passed it, and reduces the parameter's
// gradient once the next gradient has been taken.
std::vector<fsccl_event_t> backward(std::deque<TestUnit>& units, bool by_parameter) {
  std::vector<fsccl_event_t> events{{FSCCL_EVENT_UNSHARD, units.back().get(), 0, 0}};
  for (size_t u = units.size(); u-- > 0;) {
    const fsccl_unit_t unit = units[u].get();
    if (u > 0) events.push_back({FSCCL_EVENT_UNSHARD, units[u - 1].get(), 0, 0});
    const size_t params = units[u].size();
    if (!by_parameter) events.push_back({FSCCL_EVENT_GRAD, unit, 0, 0});
    for (size_t i = params; by_parameter && i-- > 0;) {
      events.push_back({FSCCL_EVENT_GRAD, unit, i, 1});
      if (i + 1 < params) events.push_back({FSCCL_EVENT_REDUCE, unit, i + 1, 1});
      events.push_back({FSCCL_EVENT_RELEASE, unit, i, 1});
    }
    events.push_back({FSCCL_EVENT_RESHARD, unit, 0, 0});
    events.push_back({FSCCL_EVENT_REDUCE, unit, 0, 0});
  }
  return events;
}

TEST(ByParameter, PeakOfADeclaredBackward) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    run_ranks(2, [sharing](Rank& self) {
      for (const bool by_parameter : {false, true}) {
        const PoolScope pool(self.comm);
        std::deque<TestUnit> units;
        for (uint64_t u = 0; u < 4; ++u) {
          UnitCase c = sliced(u, sharing);
          c.by_parameter = by_parameter;
          units.emplace_back(c, self.comm, pool.get());
          units.back().write_shards(1);
        }
        const std::vector<fsccl_event_t> events = backward(units, by_parameter);
        ASSERT_OK(fsccl_pool_schedule(pool.get(), events.data(), events.size()));
        // A unit takes 7 pages, and its parameters 2, 4 and 1. Backward with one slot a unit holds
        // two units and the gradients of one: 21 pages. By parameter, at most the gradients of two
        // parameters are there at once: 2 + 4 pages. Shared slots lie apart from gradients, so both
        // peaks add up: 14 + 6. Private slots lie among gradients, and the peak is when the second
        // gradient is taken: the third parameter is gone (-1), and its gradient is still there
        // (+1), so there are 14 - 1 + 1 + 4 = 18 pages.
        const uint64_t pages = !by_parameter                        ? 21
                               : sharing == FSCCL_SHARING_READ_ONLY ? 14 + 6
                                                                    : 14 + 4;
        EXPECT_EQ(pool.stats().plan_bound_bytes, pages * kPage);
        EXPECT_EQ(pool.stats().planned_bytes, pages * kPage);
        const fsccl_pool_stats_t before = pool.stats();
        for (uint64_t step = 1; step <= 3 && !HasFailure(); ++step) {  // follows the plan
          for (const fsccl_event_t& event : events) {
            TestUnit& unit = *std::find_if(units.begin(), units.end(), [&](const TestUnit& u) {
              return u.get() == event.unit;
            });
            const fsccl_reduce_config_t config = range(event.first, event.count);
            if (event.kind == FSCCL_EVENT_UNSHARD) unit.unshard(), unit.check_params(1);
            if (event.kind == FSCCL_EVENT_RELEASE) {
              ASSERT_OK(fsccl_unit_release(unit.get(), event.first, nullptr));
            }
            if (event.kind == FSCCL_EVENT_RESHARD) unit.reshard();
            if (event.kind == FSCCL_EVENT_GRAD && by_parameter)
              unit.write_grad(event.first, step, self.rank);
            if (event.kind == FSCCL_EVENT_GRAD && !by_parameter) unit.write_grads(step, self.rank);
            if (event.kind == FSCCL_EVENT_REDUCE) unit.reduce(&config);
          }
          for (TestUnit& unit : units) unit.check_sharded_grads({{step}});
          ASSERT_OK(fsccl_pool_step(pool.get()));
        }
        EXPECT_EQ(pool.stats().growths, before.growths);
        EXPECT_EQ(pool.stats().plan_misses, 0u);
      }
    });
}

}  // namespace
}  // namespace fsccl::testing
