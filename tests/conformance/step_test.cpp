// Runs training steps of several units and checks them in full: every element of every gathered
// parameter and every reduced gradient, over layouts, dtypes, sharing and keep policies, uneven and
// empty shards, tied and frozen parameters, while ranks take different time between their calls.
#include <deque>

#include "unit_case.h"

namespace fsccl::testing {
namespace {

void train(Rank& self, uint64_t seed, bool scheduled) {
  Random random(seed);                                       // the same on all ranks
  Random pace(mix(seed, static_cast<uint64_t>(self.rank)));  // another one on each rank
  PoolScope pool(self.comm);
  std::deque<TestUnit> units;
  for (int i = 0; i < 3; i++) {
    UnitCase one = random_unit(random);
    one.seed = mix(seed, static_cast<uint64_t>(i));
    units.emplace_back(one, self.comm, pool.get());
  }
  if (scheduled) {
    std::vector<fsccl_event_t> events;
    for (auto& unit : units)
      events.push_back({FSCCL_EVENT_UNSHARD, unit.get(), 0, 0}),
          events.push_back({FSCCL_EVENT_RESHARD, unit.get(), 0, 0});
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit)
      for (const auto kind :
           {FSCCL_EVENT_UNSHARD, FSCCL_EVENT_GRAD, FSCCL_EVENT_RESHARD, FSCCL_EVENT_REDUCE})
        events.push_back({kind, unit->get(), 0, 0});
    ASSERT_OK(fsccl_pool_schedule(pool.get(), events.data(), events.size()));
  }
  for (uint64_t step = 1; step <= 3; step++) {
    for (auto& unit : units) {
      unit.write_shards(step);
      ASSERT_OK(fsccl_unit_mark_changed(unit.get()));
    }
    for (auto& unit : units) {
      dawdle(pace);
      unit.unshard();
      unit.check_params(step);
      unit.reshard();
    }
    for (auto unit = units.rbegin(); unit != units.rend(); ++unit) {
      dawdle(pace);
      unit->unshard();
      unit->check_params(step);
      fsccl_reduce_result_t result;
      if (unit->by_parameter() && seed % 3 != 0) {
        result = unit->backward_by_parameter(step, self.rank, step);
      } else {
        unit->write_grads(step, self.rank);
        unit->reshard();
        fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
        config.result = &result;
        dawdle(pace);
        unit->reduce(&config);
      }
      unit->check_sharded_grads({{step, 0, false}});
      unit->check_result(result);
    }
    ASSERT_OK(fsccl_pool_step(pool.get()));
  }
}

TEST(Step, RandomUnits) {
  for (const int ranks : {1, 2, 3, 5})
    for (uint64_t seed = 1; seed <= 12; seed++) {
      SCOPED_TRACE(::testing::Message() << ranks << " ranks, seed " << seed);
      run_ranks(ranks, [&](Rank& self) {
        train(self, mix(seed, static_cast<uint64_t>(ranks)), seed % 2 == 0);
      });
    }
}

TEST(Step, ACommunicatorPerReplica) {
  run_ranks(4, [](Rank& self) {
    PoolScope pool(self.comm);
    fsccl_comm_t shard = nullptr, replicas = nullptr;
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank / 2, self.rank, nullptr, &shard));
    ASSERT_OK(fsccl_comm_split(self.comm, self.rank % 2, self.rank, nullptr, &replicas));
    {
      PoolScope group(shard);
      TestUnit unit(simple_unit({{9, 5}, {7}}), shard, group.get(), replicas);
      unit.write_shards(self.rank / 2 == 0 ? 1 : 2);
      ASSERT_OK(fsccl_unit_broadcast_state(unit.get(), 0, nullptr, nullptr));
      unit.check_shards(1);
      for (uint64_t step = 1; step <= 3; step++) {
        unit.unshard();
        unit.check_params(1);
        unit.write_grads(step, self.rank);
        unit.reshard();
        unit.reduce(nullptr);
        unit.check_sharded_grads({{step, 0, false}}, {{0, 1}, {2, 3}});
      }
    }
    ASSERT_OK(fsccl_comm_destroy(shard));
    ASSERT_OK(fsccl_comm_destroy(replicas));
  });
}

}  // namespace
}  // namespace fsccl::testing
