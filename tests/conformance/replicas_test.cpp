// Tests HSDP: units whose shards are held by several groups of ranks. Splits make two dimensions of
// communicators, and all ranks share one pool.
#include <atomic>
#include <thread>

#include "mesh.h"
#include "unit_case.h"

namespace fsccl::testing {
namespace {

class Replicas : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(Replicas, RandomUnitsTrain) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    Random random(12);
    for (int i = 0; i < 25 && !HasFailure(); ++i) {
      const UnitCase c = random_unit(random);
      TestUnit unit(c, mesh.shard, pool.get(), mesh.replicas);
      ASSERT_FALSE(HasFailure());
      unit.write_shards(mesh.group == i % groups ? 1 : 50 + static_cast<uint64_t>(mesh.group));
      ASSERT_OK(fsccl_unit_broadcast_state(unit.get(), i % groups, nullptr, nullptr));
      unit.check_shards(1);
      for (uint64_t step = 1; step <= 2 && !HasFailure(); ++step) {
        unit.unshard();
        unit.check_params(step);
        fsccl_reduce_result_t result{};
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.result = &result;
        if (step == 2)
          config.grads = unit.own_grads(step, self.rank);
        else
          unit.write_grads(step, self.rank);
        unit.reshard();
        unit.reduce(&config);
        unit.check_sharded_grads({{step}}, mesh.contributors);
        unit.check_result(result);
        unit.write_shards(step + 1);
        EXPECT_OK(fsccl_unit_mark_changed(unit.get()));
      }
    }
  });
}

TEST_P(Replicas, DeferredSumsOverTheReplicas) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    for (const bool own : {false, true}) {
      UnitCase c = simple_unit({{9, 4}, {13}, {}});
      for (auto& param : c.params) param.own_grad = own;
      TestUnit unit(c, mesh.shard, pool.get(), mesh.replicas);
      for (uint64_t round = 0; round < 3; ++round) {
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.scale = 0.125;
        config.defer_replicas = 1;
        unit.write_grads(10 * round + 1, self.rank);
        unit.reduce(&config);
        config.accumulate = 1;
        unit.write_grads(10 * round + 2, self.rank);
        unit.reduce(&config);
        config.defer_replicas = 0;
        unit.write_grads(10 * round + 3, self.rank);
        unit.reduce(&config);
        unit.check_sharded_grads({{10 * round + 1, 0.125, false},
                                  {10 * round + 2, 0.125, true},
                                  {10 * round + 3, 0.125, true}},
                                 mesh.contributors);
        // A gradient that is summed over the replicas cannot be added to.
        unit.write_grads(1, self.rank);
        EXPECT_ERROR(fsccl_unit_reduce_grads(unit.get(), &config, nullptr, nullptr),
                     FSCCL_ERR_INVALID_STATE, "already summed", "defer_replicas");
        config.accumulate = 0;
        unit.reduce(&config);
      }
    }
  });
}

TEST_P(Replicas, WorksOfBothPhases) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    const PoolScope pool(self.comm);
    Random pace(static_cast<uint64_t>(self.rank));
    TestUnit first(simple_unit({{9, 4}, {13}}, 1), mesh.shard, pool.get(), mesh.replicas);
    TestUnit second(simple_unit({{5, 40}}, 2), mesh.shard, pool.get(), mesh.replicas);
    for (uint64_t step = 1; step <= 20 && !HasFailure(); ++step) {
      fsccl_work_t works[4] = {};
      size_t n = 0;
      for (TestUnit* unit : {&first, &second}) {
        unit->write_shards(mesh.group == 0 ? step : 999);
        dawdle(pace);
        ASSERT_GE(fsccl_unit_broadcast_state(unit->get(), 0, nullptr, &works[n++]), 0);
        // The unit is gathered while the shards may still be arriving, and the library must order
        // the two.
        ASSERT_OK(fsccl_unit_unshard(unit->get(), FSCCL_UNSHARD_READ, nullptr, nullptr));
        unit->check_params(step);
        unit->write_grads(step, self.rank);
        unit->reshard();
        dawdle(pace);
        unit->reduce(nullptr, &works[n++]);
      }
      if (step % 2) {  // in other steps the unit's next reduction must wait for this one
        for (const fsccl_work_t work : works) ASSERT_OK(fsccl_work_wait(work, -1));
      } else {
        first.write_grads(step + 100, self.rank);
        first.reduce(nullptr, &works[0]);
        ASSERT_OK(fsccl_work_wait(works[0], -1));
        first.check_sharded_grads({{step + 100}}, mesh.contributors);
        ASSERT_OK(fsccl_work_wait(works[3], -1));
        second.check_sharded_grads({{step}}, mesh.contributors);
        continue;
      }
      first.check_sharded_grads({{step}}, mesh.contributors);
      second.check_sharded_grads({{step}}, mesh.contributors);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Shm, Replicas,
                         ::testing::Values(std::pair{2, 2}, std::pair{4, 2}, std::pair{6, 3}),
                         [](const auto& one) {
                           return std::to_string(one.param.first) + "in" +
                                  std::to_string(one.param.second);
                         });

TEST(ReplicaErrors, InFlightIsGuarded) {
  run_ranks(2, [](Rank& self) {
    static std::atomic<bool> go;
    if (self.rank == 0) go = false;
    const Mesh mesh(self, 2);
    const PoolScope pool(self.comm);
    TestUnit unit(simple_unit({{100}}), mesh.shard, pool.get(), mesh.replicas);
    unit.write_grads(1, self.rank);
    ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
    if (self.rank == 1) {
      while (!go.load()) std::this_thread::yield();
      unit.reduce(nullptr);
    } else {
      fsccl_work_t work = nullptr;
      fsccl_view_t view{};
      unit.reduce(nullptr, &work);
      EXPECT_ERROR(fsccl_unit_sharded_grad(unit.get(), 0, &view), FSCCL_ERR_INVALID_STATE,
                   "replicas", "wait");
      EXPECT_ERROR(fsccl_unit_destroy(unit.get()), FSCCL_ERR_INVALID_STATE, "in flight");
      go = true;
      ASSERT_OK(fsccl_work_wait(work, -1));
    }
    unit.check_sharded_grads({{1}}, mesh.contributors);
  });
}

TEST(ReplicaErrors, DefinitionsAndRoots) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    const PoolScope pool(self.comm);
    fsccl_comm_t crossed = nullptr;  // joins rank 0's shard with rank 3's
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank == 0 || self.rank == 3, 0, nullptr, &crossed));
    {
      fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
      config.shard_comm = mesh.shard;
      config.pool = pool.get();
      fsccl_param_t param = FSCCL_PARAM_INIT;
      param.dims = 1;
      param.shape[0] = 10;
      fsccl_unit_t unit = nullptr;
      config.replicate_comm = crossed;
      EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_MISMATCH,
                   "different shards");
      config.replicate_comm = mesh.shard;
      EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_INVALID_ARGUMENT,
                   "replicate_comm");
      config.replicate_comm = mesh.replicas;
      param.shape[0] = mesh.group ? 10 : 11;  // equal within a group, different between replicas
      EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_MISMATCH, "parameter 0");
      param.shape[0] = self.rank ? 10 : 11;  // the ranks of the other group agree with each other
      EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_MISMATCH, "parameter 0");
      param.shape[0] = 10;
      float grads[10];
      param.sharded_grad = mesh.group ? grads : nullptr;
      EXPECT_ERROR(fsccl_unit_create(&config, &param, 1, &unit), FSCCL_ERR_MISMATCH,
                   "sharded_grad");
      param.sharded_grad = nullptr;
      TestUnit good(simple_unit({{10}}), mesh.shard, pool.get(), mesh.replicas);
      EXPECT_ERROR(fsccl_unit_broadcast_state(good.get(), 2, nullptr, nullptr),
                   FSCCL_ERR_INVALID_ARGUMENT, "root 2");
      EXPECT_ERROR(fsccl_unit_broadcast_state(good.get(), -1, nullptr, nullptr),
                   FSCCL_ERR_INVALID_ARGUMENT, "root -1");
      EXPECT_ERROR(fsccl_comm_destroy(mesh.replicas), FSCCL_ERR_INVALID_STATE, "destroy");
    }
    EXPECT_OK(fsccl_comm_destroy(crossed));
  });
}

}  // namespace
}  // namespace fsccl::testing
