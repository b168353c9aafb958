// Tests units: everything that a step does to one unit, over layouts, dtypes, sharing, keeping, odd
// shapes and ways to own memory.
#include <algorithm>
#include <atomic>
#include <thread>

#include "unit_case.h"

namespace fsccl::testing {
namespace {

// Runs a few steps of one unit and checks everything.
void train(const UnitCase& c, const Rank& self, fsccl_pool_t pool) {
  TestUnit unit(c, self.comm, pool);
  if (::testing::Test::HasFailure()) return;
  unit.check_layout();
  uint64_t version = 1;
  unit.write_shards(version);
  if (c.marks_changes) {
    EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
  }
  for (uint64_t step = 1; step <= 3; ++step) {
    unit.unshard();
    unit.check_params(version);
    unit.reshard();
    unit.unshard();  // for the backward pass
    unit.check_params(version);
    fsccl_reduce_result_t result{};
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.result = &result;
    if (step == 2)
      config.grads = unit.own_grads(step, self.rank);
    else
      unit.write_grads(step, self.rank);
    unit.check_params(version);  // gradients must not overwrite parameters
    unit.reshard();
    unit.reduce(&config);
    if (c.by_parameter) {  // one more backward, parameter by parameter
      unit.unshard();
      result = unit.backward_by_parameter(step, self.rank, version);
    }
    unit.check_sharded_grads({{step}});
    unit.check_result(result);
    unit.check_shards(version);
    unit.write_shards(++version);
    if (c.marks_changes) {
      EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
    }
    if (::testing::Test::HasFailure()) return;
  }
}

class Units : public ::testing::TestWithParam<int> {};

TEST_P(Units, EveryLayoutAndDtype) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const fsccl_layout_t layout :
         {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
      for (const fsccl_dtype_t wire : {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
        for (const fsccl_dtype_t reduce :
             {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
          for (const fsccl_dtype_t grad : {FSCCL_FLOAT32, FSCCL_BFLOAT16, FSCCL_FLOAT64}) {
            UnitCase c =
                simple_unit({{7, 5}, {33}, {}, {3, 2, 4}}, static_cast<uint64_t>(wire) * 64 +
                                                               static_cast<uint64_t>(reduce) * 8 +
                                                               static_cast<uint64_t>(grad));
            c.layout = layout;
            if (layout == FSCCL_LAYOUT_RAGGED)
              c.params[0].block_rows = c.params[0].block_columns = 2;
            c.wire = wire;
            c.reduce = reduce;
            c.grad = grad;
            c.sharing = c.seed % 2 ? FSCCL_SHARING_PRIVATE : FSCCL_SHARING_READ_ONLY;
            train(c, self, pool.get());
            if (HasFailure()) return;
          }
  });
}

TEST_P(Units, RandomOnes) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    Random random(static_cast<uint64_t>(self.ranks) + 40);
    for (int i = 0; i < 120 && !HasFailure(); ++i) train(random_unit(random), self, pool.get());
  });
}

TEST_P(Units, LargeEnoughToStream) {
  const Settings settings{{"FSCCL_STREAMING_BYTES", "64K"}};
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const fsccl_layout_t layout :
         {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED}) {
      UnitCase c = simple_unit({{301, 173}, {10'007}, {1, 40'000}, {5}}, 9);
      c.layout = layout;
      if (layout == FSCCL_LAYOUT_RAGGED) c.params[0].block_rows = c.params[0].block_columns = 32;
      train(c, self, pool.get());
    }
  });
}

// A rank may write to its private slot as soon as the slot is there, because the others have read
// what they need from it. The slot is so large that they could be late.
TEST_P(Units, WhatARankWritesToAPrivateSlotStaysThere) {
  run_ranks(GetParam(), [](Rank& self) {
    const PoolScope pool(self.comm);
    UnitCase c = simple_unit({{1 << 18}});
    c.sharing = FSCCL_SHARING_PRIVATE;
    c.wire = FSCCL_FLOAT32;
    TestUnit unit(c, self.comm, pool.get());
    unit.write_shards(1);
    for (int round = 0; round < 20 && !HasFailure(); ++round) {
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      unit.unshard(round % 4 ? FSCCL_UNSHARD_READ : FSCCL_UNSHARD_WRITABLE);
      fsccl_view_t view{};
      ASSERT_OK(fsccl_unit_param(unit.get(), 0, &view));
      if (self.rank == round % self.ranks)
        std::memset(view.data, 0x42, view.count * sizeof(float));
      else
        unit.check_params(1);
      unit.reshard();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Units, ::testing::Values(1, 2, 3, 5),
                         ::testing::PrintToStringParamName());

TEST(Unit, MovesFrozenParametersOfAnyDtype) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    for (int d = 0; d < FSCCL_DTYPE_COUNT; ++d) {
      UnitCase c = simple_unit({{10, 3}, {4}}, static_cast<uint64_t>(d));
      c.wire = static_cast<fsccl_dtype_t>(d);
      for (auto& param : c.params) param.dtype = c.wire, param.frozen = true;
      TestUnit unit(c, self.comm, pool.get());
      ASSERT_FALSE(HasFailure());
      unit.write_shards(3);
      unit.unshard();
      unit.check_params(3);
      unit.reshard();
      fsccl_view_t view{};
      EXPECT_ERROR(fsccl_unit_grad(unit.get(), 0, nullptr, &view), FSCCL_ERR_INVALID_ARGUMENT,
                   "frozen");
      unit.reduce(nullptr);  // has nothing to reduce, which is no error
    }
  });
}

TEST(Unit, KeptContentsLastUntilMarkChanged) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    run_ranks(3, [sharing](Rank& self) {
      const PoolScope pool(self.comm);
      UnitCase c = simple_unit({{9, 4}, {5}});
      c.keep = FSCCL_KEEP_ALWAYS;
      c.marks_changes = true;
      c.sharing = sharing;
      TestUnit unit(c, self.comm, pool.get());
      unit.write_shards(1);
      unit.unshard();
      const void* const address = unit.address(0);
      unit.check_params(1);
      unit.reshard();
      unit.write_shards(2);
      unit.unshard();  // gives the kept parameters, because no change was marked
      unit.check_params(1);
      EXPECT_EQ(unit.address(0), address);
      unit.write_grads(1, self.rank);
      unit.reshard();
      unit.reduce(nullptr);  // marks no change if the unit's caller marks changes
      unit.unshard();
      unit.check_params(1);
      unit.reshard();
      EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
      unit.unshard();
      unit.check_params(2);
      EXPECT_EQ(unit.address(0), address);
      unit.reshard();
    });
}

TEST(Unit, KeptWithinABudget) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    UnitCase c = simple_unit({{4096}});  // the slot has 8192 bytes, which are whole pages
    c.keep = FSCCL_KEEP_BUDGET;
    c.keep_budget_bytes = 20'000;
    std::vector<std::unique_ptr<TestUnit>> units;
    for (uint64_t i = 0; i < 3; ++i) {
      c.seed = i + 1;
      units.push_back(std::make_unique<TestUnit>(c, self.comm, pool.get()));
      units.back()->write_shards(1);
      units.back()->unshard();
      units.back()->check_params(1);
      units.back()->reshard();
    }
    EXPECT_EQ(pool.stats().collective_live_bytes, 2u * 8192);  // the third is beyond the budget
    units.erase(units.begin());
    EXPECT_EQ(pool.stats().collective_live_bytes, 8192u);
    units.clear();
    EXPECT_EQ(pool.stats().collective_live_bytes, 0u);
  });
}

TEST(Unit, DestroyGivesSlotsBack) {
  for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE})
    for (const fsccl_unshard_mode_t mode : {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE})
      run_ranks(2, [sharing, mode](Rank& self) {
        const PoolScope pool(self.comm);
        for (int round = 0; round < 3; ++round) {
          UnitCase c = simple_unit({{64, 4}});
          c.sharing = sharing;
          TestUnit unit(c, self.comm, pool.get());
          unit.write_shards(1);
          unit.unshard(mode);
          unit.write_grads(1, self.rank);
          ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        }
        EXPECT_EQ(pool.stats().live_bytes, 0u);
      });
}

TEST(Unit, AccumulatesInTheShardedGradient) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const fsccl_dtype_t grad : {FSCCL_FLOAT32, FSCCL_BFLOAT16, FSCCL_FLOAT64}) {
      UnitCase c = simple_unit({{8, 8}, {13}});
      c.grad = grad;
      TestUnit unit(c, self.comm, pool.get());
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      config.scale = 0.25;
      unit.write_grads(1, self.rank);
      unit.reduce(&config);
      config.accumulate = 1;
      unit.write_grads(2, self.rank);
      unit.reduce(&config);
      config.grads = unit.own_grads(3, self.rank);
      unit.reduce(&config);
      unit.check_sharded_grads({{1, 0.25, false}, {2, 0.25, true}, {3, 0.25, true}});
      unit.check_result(result);
    }
  });
}

TEST(Unit, TheSameBitsTwiceWhateverTheAddresses) {
  run_ranks(4, [](Rank& self) {
    const PoolScope pool(self.comm);
    std::vector<fsccl_reduce_result_t> results;
    for (const bool own : {false, true, false}) {
      void* filler = nullptr;  // moves the unit's own memory
      if (self.rank % 2) {
        ASSERT_OK(fsccl_pool_alloc(pool.get(), 1000 + results.size() * 64, nullptr, &filler));
      }
      TestUnit unit(simple_unit({{100, 101}, {777}}), self.comm, pool.get());
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      if (own)
        config.grads = unit.own_grads(1, self.rank);
      else
        unit.write_grads(1, self.rank);
      unit.reduce(&config);
      unit.check_sharded_grads({{1}});
      results.push_back(result);
      EXPECT_OK(fsccl_pool_free(pool.get(), filler, nullptr));
    }
    for (const auto& result : results)
      EXPECT_EQ(std::memcmp(&result.norm_squared, &results[0].norm_squared, sizeof(double)), 0);
  });
}

TEST(Unit, ReportsInfiniteAndNaNGradients) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    for (const fsccl_dtype_t grad : {FSCCL_FLOAT32, FSCCL_FLOAT16, FSCCL_BFLOAT16, FSCCL_FLOAT64})
      for (const double bad : {std::nan(""), HUGE_VAL, 0.0}) {
        UnitCase c = simple_unit({{20}});
        c.reduce = FSCCL_FLOAT32;
        c.grad = grad;
        TestUnit unit(c, self.comm, pool.get());
        unit.write_grads(1, self.rank);
        fsccl_view_t view{};
        ASSERT_OK(fsccl_unit_grad(unit.get(), 0, nullptr, &view));
        if (self.rank == 1 && bad != 0) static_cast<float*>(view.data)[3] = static_cast<float>(bad);
        fsccl_reduce_result_t result{-1, -1};
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.result = &result;
        unit.reduce(&config);
        // Rank 0 holds element 3.
        EXPECT_EQ(result.finite, self.rank == 0 && bad != 0 ? 0 : 1) << name_of(grad) << " " << bad;
      }
  });
}

// fp16 gradients that overflow become infinite at the store, and are reported.
TEST(Unit, ReportsOverflowOfTheResult) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    UnitCase c = simple_unit({{4}});
    c.reduce = FSCCL_FLOAT32;
    c.grad = FSCCL_FLOAT16;
    TestUnit unit(c, self.comm, pool.get());
    fsccl_view_t view{};
    ASSERT_OK(fsccl_unit_grad(unit.get(), 0, nullptr, &view));
    for (uint64_t i = 0; i < view.count; ++i) static_cast<float*>(view.data)[i] = 40'000;
    fsccl_reduce_result_t result{};
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.result = &result;
    config.scale = 1;
    unit.reduce(&config);
    EXPECT_EQ(result.finite, 0);
    EXPECT_FALSE(std::isfinite(result.norm_squared));
  });
}

TEST(Unit, TellsWhenEachShardIsReady) {
  for (const fsccl_layout_t layout :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    run_ranks(3, [layout](Rank& self) {
      const PoolScope pool(self.comm);
      UnitCase c = simple_unit({{6, 2}, {5}, {6, 2}, {2}, {9}});
      c.layout = layout;
      c.params[1].frozen = true;
      c.params[2].tied_to = 0;
      TestUnit unit(c, self.comm, pool.get());
      std::vector<size_t> wanted;
      for (const size_t i : {0, 3, 4}) {
        fsccl_view_t view{};
        ASSERT_OK(fsccl_unit_shard(unit.get(), i, &view));
        if (view.count) wanted.push_back(i);
      }
      for (const bool async : {false, true}) {
        ReadyShards ready{unit.get(), {}};
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.shard_ready = note_ready;
        config.shard_ready_context = &ready;
        unit.write_grads(1, self.rank);
        fsccl_work_t work = nullptr;
        unit.reduce(&config, async ? &work : nullptr);
        if (async) {
          ASSERT_OK(fsccl_work_wait(work, -1));
        }
        std::sort(ready.indices.begin(), ready.indices.end());
        EXPECT_EQ(ready.indices, wanted);
      }
    });
}

// The error of each function says why the call comes at the wrong moment.
TEST(Unit, CallsAtTheWrongMoment) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{4, 4}, {3}}), self.comm, pool.get());
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_param(unit.get(), 0, &view), FSCCL_ERR_INVALID_STATE, "unshard");
    EXPECT_ERROR(fsccl_unit_reshard(unit.get(), nullptr), FSCCL_ERR_INVALID_STATE, "not unsharded");
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "no gradients", "grad()");
    EXPECT_ERROR(fsccl_unit_broadcast_state(unit.get(), 0, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "replicate_comm");
    unit.unshard();
    EXPECT_ERROR(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "already", "reshard");
    EXPECT_ERROR(fsccl_unit_param(unit.get(), 2, &view), FSCCL_ERR_INVALID_ARGUMENT,
                 "2 parameters");
    EXPECT_ERROR(fsccl_unit_shard(unit.get(), ~size_t{0}, &view), FSCCL_ERR_INVALID_ARGUMENT,
                 "2 parameters");
    EXPECT_ERROR(fsccl_unit_grad(unit.get(), 2, nullptr, &view), FSCCL_ERR_INVALID_ARGUMENT,
                 "2 parameters");
    EXPECT_ERROR(fsccl_unit_sharded_grad(unit.get(), 2, &view), FSCCL_ERR_INVALID_ARGUMENT,
                 "2 parameters");
    EXPECT_ERROR(fsccl_unit_param(unit.get(), 0, nullptr), FSCCL_ERR_INVALID_ARGUMENT,
                 "view is NULL");
    unit.reshard();
    EXPECT_ERROR(fsccl_unit_reshard(unit.get(), nullptr), FSCCL_ERR_INVALID_STATE, "not unsharded");
    EXPECT_ERROR(fsccl_unit_param(unit.get(), 0, &view), FSCCL_ERR_INVALID_STATE, "unshard");
    unit.write_grads(1, self.rank);
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.grads = unit.own_grads(1, self.rank);
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_INVALID_STATE, "grads = NULL");
    unit.reduce(nullptr);
    const void* const nothing[2] = {nullptr, nullptr};
    config.grads = nothing;
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "grads[0]");
    EXPECT_ERROR(fsccl_pool_destroy(pool.get()), FSCCL_ERR_INVALID_STATE, "1 unit", "destroy");
    EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE, "destroy them first");
    unit.check_sharded_grads({{1}});  // the refused calls changed nothing
  });
}

TEST(Unit, AsyncUnshardAndReduce) {
  run_ranks(3, [](Rank& self) {
    const PoolScope pool(self.comm);
    Random own(static_cast<uint64_t>(self.rank));
    for (const fsccl_sharing_t sharing : {FSCCL_SHARING_READ_ONLY, FSCCL_SHARING_PRIVATE}) {
      std::vector<std::unique_ptr<TestUnit>> units;
      for (uint64_t u = 0; u < 4; ++u) {
        UnitCase c = simple_unit({{31, 17}, {100}}, u);
        c.sharing = sharing;
        units.push_back(std::make_unique<TestUnit>(c, self.comm, pool.get()));
        units.back()->write_shards(1);
      }
      for (uint64_t step = 1; step <= 10 && !HasFailure(); ++step) {
        std::vector<fsccl_work_t> works(units.size());
        for (size_t u = 0; u < units.size(); ++u) {
          ASSERT_GE(fsccl_unit_unshard(units[u]->get(), FSCCL_UNSHARD_READ, nullptr, &works[u]), 0);
          dawdle(own);
        }
        for (size_t u = 0; u < units.size(); ++u) {
          ASSERT_OK(fsccl_work_wait(works[u], -1));
          units[u]->check_params(step);
          units[u]->write_grads(step, self.rank);
          units[u]->reshard();
          dawdle(own);
          units[u]->reduce(nullptr, &works[u]);
        }
        for (size_t u = 0; u < units.size(); ++u) {
          ASSERT_OK(fsccl_work_wait(works[u], -1));
          units[u]->check_sharded_grads({{step}});
          units[u]->write_shards(step + 1);
        }
      }
    }
  });
}

// Between submission and completion the operation's objects may not be used or destroyed, and the
// library refuses such calls.
TEST(Unit, OperationsInFlightAreGuarded) {
  run_ranks(2, [](Rank& self) {
    const PoolScope pool(self.comm);
    static std::atomic<int> turn;
    if (self.rank == 0) turn = 0;
    TestUnit unit(simple_unit({{8}}), self.comm, pool.get());
    unit.write_shards(1);
    unit.unshard();  // makes the slot's memory, for which the call waits for the other rank
    unit.reshard();
    unit.write_grads(1, self.rank);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 1) {
      while (turn.load() == 0) std::this_thread::yield();
      unit.unshard();
      while (turn.load() == 1) std::this_thread::yield();
      unit.reduce(nullptr);
    } else {
      fsccl_view_t view{};
      fsccl_work_t work = nullptr;
      EXPECT_EQ(fsccl_unit_unshard(unit.get(), FSCCL_UNSHARD_READ, nullptr, &work),
                FSCCL_IN_PROGRESS);
      EXPECT_ERROR(fsccl_unit_param(unit.get(), 0, &view), FSCCL_ERR_INVALID_STATE,
                   "wait for its work");
      EXPECT_ERROR(fsccl_unit_destroy(unit.get()), FSCCL_ERR_INVALID_STATE, "in flight", "wait");
      turn = 1;
      ASSERT_OK(fsccl_work_wait(work, -1));
      unit.check_params(1);
      unit.reduce(nullptr, &work);
      EXPECT_ERROR(fsccl_unit_sharded_grad(unit.get(), 0, &view), FSCCL_ERR_INVALID_STATE,
                   "wait for the work");
      EXPECT_ERROR(fsccl_unit_destroy(unit.get()), FSCCL_ERR_INVALID_STATE, "in flight", "wait");
      turn = 2;
      ASSERT_OK(fsccl_work_wait(work, -1));
    }
    unit.check_sharded_grads({{1}});
    unit.reshard();
  });
}

// The unit is on half of the ranks, in a pool of all of them.
TEST(Unit, OnASplitWithAPoolOfTheParent) {
  run_ranks(4, [](Rank& self) {
    const PoolScope pool(self.comm);
    fsccl_comm_t half = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, -self.rank, nullptr, &half));
    Random random(8);
    Rank inside{0, 2, half};
    ASSERT_OK(fsccl_comm_rank(half, &inside.rank));
    for (int i = 0; i < 40 && !HasFailure(); ++i) train(random_unit(random), inside, pool.get());
    EXPECT_OK(fsccl_comm_destroy(half));
  });
}

// If there are several hosts, ranks lie on them in any order, and not the same number on each.
TEST(Unit, OnHostsOfAnyShape) {
  for (const std::vector<int>& hosts :
       {std::vector<int>{0, 1, 0, 1}, {1, 0, 0}, {0, 1, 1, 1}, {0, 1, 1, 0, 1}})
    run_ranks(static_cast<int>(hosts.size()),
              [](Rank& self) {
                const PoolScope pool(self.comm);
                Random random(static_cast<uint64_t>(self.ranks) + 70);
                for (int i = 0; i < 25 && !HasFailure(); ++i)
                  train(random_unit(random), self, pool.get());
              },
              {.hosts = hosts});
}

}  // namespace
}  // namespace fsccl::testing
