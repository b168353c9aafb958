// Tests HSDP: reductions whose two phases run in the background, the results that they give when
// they are done, and whether replicas are equal.
#include <array>
#include <atomic>
#include <deque>
#include <thread>

#include "fsccl/insight.h"
#include "mesh.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

// One rank of four is late for both phases. The others' calls return nevertheless.
TEST(Hsdp, NoPhaseBlocksTheCall) {
  std::atomic<int> returned{0};
  run_ranks(4, [&](Rank& self) {
    const Mesh mesh(self, 2);
    const PoolScope pool(self.comm);
    UnitCase c = simple_unit({{40, 5}, {7}});
    c.params[1].own_grad = true;  // so there are two operations over the replicas
    TestUnit unit(c, mesh.shard, pool.get(), mesh.replicas);
    unit.write_grads(1, self.rank);
    if (self.rank == 3)
      while (returned.load() < 3) std::this_thread::yield();
    fsccl_work_t work = nullptr;
    fsccl_reduce_result_t result{};
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.result = &result;
    unit.reduce(&config, &work);
    returned++;
    ASSERT_OK(fsccl_work_wait(work, -1));
    unit.check_sharded_grads({{1}}, mesh.contributors);
    unit.check_result(result);
  });
}

std::vector<size_t> owned_gradients(TestUnit& unit, const UnitCase& c) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < unit.size(); ++i) {
    fsccl_view_t view{};
    EXPECT_OK(fsccl_unit_shard(unit.get(), i, &view));
    if (unit.has_gradient(i) && c.params[i].tied_to < 0 && view.count) indices.push_back(i);
  }
  return indices;
}

class Meshes : public ::testing::TestWithParam<std::pair<int, int>> {
 protected:
  // Runs the ranks. If there are several hosts, ranks with successive numbers are on different
  // hosts, and so are the ranks of a shard_comm.
  static void run_spread(int ranks, const std::function<void(Rank&)>& body) {
    RanksOptions options;
    for (int rank = 0; hosts_given() && rank < ranks; ++rank)
      options.hosts.push_back(rank % static_cast<int>(number_of_hosts()));
    run_ranks(ranks, body, options);
  }
};

// Some micro-batches are reduced over the shard ranks alone, and the last one is summed over the
// replicas, too. Some of the random units have frozen and tied parameters.
TEST_P(Meshes, AccumulateAndTell) {
  const auto& [ranks, groups] = GetParam();
  run_spread(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    Random random(77), pace(static_cast<uint64_t>(self.rank));
    for (int i = 0; i < 30 && !HasFailure(); ++i) {
      const UnitCase c = random_unit(random);
      TestUnit unit(c, mesh.shard, pool.get(), mesh.replicas);
      std::vector<TestUnit::Reduction> history;
      const uint64_t batches = 1 + random.below(3);
      for (uint64_t batch = 1; batch <= batches; ++batch) {
        ReadyShards ready{unit.get(), {}};
        fsccl_reduce_result_t result{};
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.accumulate = batch > 1;
        config.defer_replicas = batch < batches;
        config.result = &result;
        config.shard_ready = note_ready;
        config.shard_ready_context = &ready;
        if (random.below(2))
          config.grads = unit.own_grads(batch, self.rank);
        else
          unit.write_grads(batch, self.rank);
        dawdle(pace);
        fsccl_work_t work = nullptr;
        const bool async = random.below(3) != 0;
        unit.reduce(&config, async ? &work : nullptr);
        dawdle(pace);
        if (async) {
          ASSERT_OK(fsccl_work_wait(work, -1));
        }
        history.push_back({batch, 0, batch > 1});
        unit.check_result(result);
        EXPECT_EQ(ready.indices,
                  batch == batches ? owned_gradients(unit, c) : std::vector<size_t>{})
            << describe(c);
      }
      unit.check_sharded_grads(history, mesh.contributors);
    }
  });
}

// Reductions of several units are in flight at once. They are completed by a wait for the last one,
// by tests, by another thread, or by the library alone.
TEST_P(Meshes, ManyInFlight) {
  const auto& [ranks, groups] = GetParam();
  run_spread(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    Random pace(static_cast<uint64_t>(self.rank));
    std::deque<TestUnit> units;
    for (uint64_t i = 0; i < 4; ++i) {
      UnitCase c = simple_unit({{static_cast<int64_t>(30 + 200 * i), 9}, {5}}, 20 + i);
      c.layout = i % 2 ? FSCCL_LAYOUT_FLAT : FSCCL_LAYOUT_PER_PARAM;
      c.params[1].own_grad = i == 2;
      units.emplace_back(c, mesh.shard, pool.get(), mesh.replicas);
    }
    for (uint64_t step = 1; step <= 24 && !HasFailure(); ++step) {
      std::array<fsccl_work_t, 4> works{};
      for (size_t i = 0; i < works.size(); ++i) {
        units[i].write_grads(step, self.rank);
        dawdle(pace);
        units[i].reduce(nullptr, &works[i]);
      }
      switch ((step + static_cast<uint64_t>(self.rank)) % 4) {
        case 0:
          ASSERT_OK(fsccl_work_wait(works[3], -1));
          break;
        case 1:
          for (fsccl_status_t state = FSCCL_IN_PROGRESS; state == FSCCL_IN_PROGRESS;
               std::this_thread::yield()) {
            state = fsccl_work_test(works[3]);
            ASSERT_GE(state, 0) << explain(state);
          }
          break;
        case 2:
          std::thread([&] { EXPECT_OK(fsccl_work_wait(works[3], -1)); }).join();
          break;
        default: {  // the library alone
          fsccl_view_t view{};
          while (fsccl_unit_sharded_grad(units[3].get(), 0, &view) == FSCCL_ERR_INVALID_STATE)
            std::this_thread::yield();
        }
      }
      for (const fsccl_work_t work : works) EXPECT_OK(fsccl_work_test(work));
      for (TestUnit& unit : units) unit.check_sharded_grads({{step}}, mesh.contributors);
    }
  });
}

TEST_P(Meshes, InfinitiesOfAnyReplicaAreSeen) {
  const auto& [ranks, groups] = GetParam();
  run_spread(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{12, 2}}), mesh.shard, pool.get(), mesh.replicas);
    for (const bool bad : {true, false}) {
      unit.write_grads(1, self.rank);
      fsccl_view_t grad{};
      ASSERT_OK(fsccl_unit_grad(unit.get(), 0, nullptr, &grad));
      if (bad && self.rank == self.ranks - 1)
        std::fill_n(static_cast<uint16_t*>(grad.data), grad.count, uint16_t{0x7f80});
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      fsccl_work_t work = nullptr;
      unit.reduce(&config, &work);
      ASSERT_OK(fsccl_work_wait(work, -1));
      EXPECT_EQ(result.finite, bad ? 0 : 1);
    }
  });
}

TEST_P(Meshes, VerifyNamesTheFirstThatDiffers) {
  const auto& [ranks, groups] = GetParam();
  run_spread(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    for (const fsccl_layout_t layout : {FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_FLAT}) {
      UnitCase c = simple_unit({{12, 7}, {36, 3}, {24, 5}});
      c.layout = layout;
      c.keep = FSCCL_KEEP_ALWAYS;
      c.marks_changes = true;
      TestUnit unit(c, mesh.shard, pool.get(), mesh.replicas);
      unit.write_shards(1);
      EXPECT_OK(fsccl_unit_verify_replicas(unit.get()));
      if (groups == 1) continue;
      // First the last byte of the last parameter that any rank holds is changed, and then a byte
      // of parameter 1, which comes before it.
      for (const size_t param : {size_t{2}, size_t{1}}) {
        if (self.rank == self.ranks - 1) {
          fsccl_view_t view{};
          for (size_t i = param; i < 3; ++i) {
            ASSERT_OK(fsccl_unit_shard(unit.get(), i, &view));
            if (view.count) break;
          }
          ASSERT_NE(view.data, nullptr);
          static_cast<char*>(view.data)[view.count * 4 - 1] ^= 1;
        }
        EXPECT_EQ(fsccl_unit_verify_replicas(unit.get()), FSCCL_ERR_MISMATCH);
        std::array<char, 200> mine{}, first{};
        std::strncpy(mine.data(), last_error().text, mine.size() - 1);
        first = mine;
        ASSERT_OK(fsccl_broadcast(first.data(), first.size(), FSCCL_UINT8, 0, self.comm, nullptr,
                                  nullptr));
        EXPECT_STREQ(mine.data(), first.data());
        const std::string shard = "rank " + std::to_string(mesh.per_group - 1) + " of shard_comm";
        const std::string replica = "rank " + std::to_string(groups - 1) + " of replicate_comm";
        if (layout == FSCCL_LAYOUT_PER_PARAM) {
          EXPECT_THAT(mine.data(), ::testing::HasSubstr("parameter " + std::to_string(param)));
        }
        EXPECT_THAT(mine.data(), ::testing::HasSubstr(shard));
        EXPECT_THAT(mine.data(), ::testing::HasSubstr(replica));
      }
      // The broadcast makes the replicas equal. It drops a kept copy of the parameters, although in
      // this unit the caller marks changes itself.
      unit.unshard();
      unit.reshard();
      unit.write_shards(mesh.group == 0 ? 2 : 1);
      ASSERT_OK(fsccl_unit_broadcast_state(unit.get(), 0, nullptr, nullptr));
      EXPECT_OK(fsccl_unit_verify_replicas(unit.get()));
      unit.unshard();
      unit.check_params(2);
      unit.reshard();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Meshes,
                         ::testing::Values(std::pair{2, 2}, std::pair{4, 2}, std::pair{6, 3},
                                           std::pair{2, 1}),
                         [](const auto& one) {
                           return std::to_string(one.param.first) + "in" +
                                  std::to_string(one.param.second);
                         });

TEST(Hsdp, VerifyAtTheWrongMoment) {
  std::atomic<bool> go{false};
  run_ranks(2, [&](Rank& self) {
    const Mesh mesh(self, 2);
    const PoolScope pool(self.comm);
    TestUnit alone(simple_unit({{8}}), self.comm, pool.get());
    EXPECT_ERROR(fsccl_unit_verify_replicas(alone.get()), FSCCL_ERR_INVALID_STATE,
                 "no replicate_comm");
    TestUnit unit(simple_unit({{8}}, 2), mesh.shard, pool.get(), mesh.replicas);
    if (self.rank == 1) {
      while (!go.load()) std::this_thread::yield();
      ASSERT_OK(fsccl_unit_broadcast_state(unit.get(), 1, nullptr, nullptr));
    } else {
      fsccl_work_t work = nullptr;
      ASSERT_EQ(fsccl_unit_broadcast_state(unit.get(), 1, nullptr, &work), FSCCL_IN_PROGRESS);
      EXPECT_ERROR(fsccl_unit_verify_replicas(unit.get()), FSCCL_ERR_INVALID_STATE, "in flight");
      go = true;
      ASSERT_OK(fsccl_work_wait(work, -1));
    }
    EXPECT_OK(fsccl_unit_verify_replicas(unit.get()));
    EXPECT_ERROR(fsccl_unit_verify_replicas(nullptr), FSCCL_ERR_INVALID_HANDLE, "unit");
  });
}

// The first phase can never end, so neither can the second. Both communicators can be destroyed
// nevertheless.
TEST(Hsdp, AnEndOfTheShardCommEndsTheSumOverTheReplicas) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> waiting{0};
    run_ranks(4, [&](Rank& self) {
      const Mesh mesh(self, 2);
      const PoolScope pool(self.comm);
      {
        TestUnit unit(simple_unit({{64, 3}}), mesh.shard, pool.get(), mesh.replicas);
        unit.write_grads(1, self.rank);
        ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
        if (self.rank == 1) {  // never reduces
          while (waiting.load() < 3) std::this_thread::yield();
          for (int i = 0; i < 200 * round; ++i) std::this_thread::yield();
          EXPECT_OK(fsccl_comm_abort(mesh.shard));
          EXPECT_OK(fsccl_comm_abort(mesh.replicas));
        } else {
          fsccl_work_t work = nullptr;
          ASSERT_EQ(fsccl_unit_reduce_grads(unit.get(), nullptr, nullptr, &work),
                    FSCCL_IN_PROGRESS);
          waiting++;
          EXPECT_ERROR(fsccl_work_wait(work, -1), FSCCL_ERR_ABORTED, "aborted by rank");
        }
      }
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    });
  }
}

}  // namespace
}  // namespace fsccl::testing
