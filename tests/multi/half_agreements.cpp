// The calls of half_call_test.cpp in which ranks agree in several steps.
#include <fsccl/insight.h>
#include <fsccl/publish.h>
#include <fsccl/redistribute.h>

#include <memory>

#include "multi/half_calls.h"

namespace fsccl::testing {
namespace {

// Returns a call that makes a handle from a communicator.
template <class Handle>
Maker creation(fsccl_status_t (*create)(fsccl_comm_t, Handle*), fsccl_status_t (*destroy)(Handle)) {
  return [=](const Child&, fsccl_comm_t world) {
    Call call;
    const auto made = std::make_shared<Handle>();
    call.comm = part_of(world, 0);
    call.before = [] {};
    call.run = [=, comm = call.comm] { return create(comm, made.get()); };
    call.give_back = [=] {
      if (*made) must_do(destroy(*made), "destroy what was made");
    };
    return call;
  };
}

fsccl_status_t split(fsccl_comm_t comm, fsccl_comm_t* made) {
  return fsccl_comm_split(comm, 0, 0, nullptr, made);
}
fsccl_status_t subset(fsccl_comm_t comm, fsccl_comm_t* made) {
  constexpr int kAll[] = {0, 1, 2, 3};
  return fsccl_comm_subset(comm, kAll, kRanks, 7, nullptr, made);
}
fsccl_status_t create_pool(fsccl_comm_t comm, fsccl_pool_t* made) {
  return fsccl_pool_create(comm, nullptr, made);
}
fsccl_status_t create_publisher(fsccl_comm_t comm, fsccl_publisher_t* made) {
  static float shards[4096];
  MadeUnit::Params params = MadeUnit::params();
  for (fsccl_param_t& param : params) param.shard = shards;
  fsccl_publish_config_t config = FSCCL_PUBLISH_CONFIG_INIT;
  config.params = params.data();
  config.count = params.size();
  return fsccl_publisher_create(&config, comm, made);
}

Maker unit_creation(bool replicas) {
  return [=](const Child& self, fsccl_comm_t world) {
    const auto made = std::make_shared<MadeUnit>(UnitCase{.replicas = replicas}, self, world);
    Call call;
    call.comm = made->comm();
    call.before = [] {};
    call.run = [=] { return made->create(); };
    call.give_back = [=] { made->destroy(); };
    return call;
  };
}

Maker call_of_unit(fsccl_status_t (*run)(const MadeUnit&), bool replicas) {
  return [=](const Child& self, fsccl_comm_t world) {
    const auto made = std::make_shared<MadeUnit>(UnitCase{.replicas = replicas}, self, world);
    must_do(made->create(), "unit_create");
    Call call;
    call.comm = made->comm();
    call.before = [] {};
    call.run = [=] { return run(*made); };
    call.give_back = [=] { made->destroy(); };
    return call;
  };
}
fsccl_status_t verify_replicas(const MadeUnit& made) {
  return fsccl_unit_verify_replicas(made.unit());
}
fsccl_status_t schedule(const MadeUnit& made) {
  const fsccl_event_t events[] = {{FSCCL_EVENT_UNSHARD, made.unit(), 0, 0},
                                  {FSCCL_EVENT_RESHARD, made.unit(), 0, 0}};
  return fsccl_pool_schedule(made.pool(), events, std::size(events));
}

// The shard of each rank goes to the rank with the next number.
Call redistribution(const Child& self, fsccl_comm_t world) {
  Call call;
  call.comm = part_of(world, 0);
  call.before = [] {};
  call.run = [comm = call.comm, rank = self.rank] {
    static float from[MadeUnit::kParams][8192], to[MadeUnit::kParams][8192];
    const MadeUnit::Params params = MadeUnit::params();
    std::array<fsccl_redistributed_t, MadeUnit::kParams> buffers;
    for (size_t i = 0; i < params.size(); i++) buffers[i] = {i, FSCCL_FLOAT32, from[i], to[i]};
    fsccl_redistribute_config_t config = FSCCL_REDISTRIBUTE_CONFIG_INIT;
    config.params = params.data();
    config.count = params.size();
    config.from = {FSCCL_LAYOUT_PER_PARAM, kRanks, rank};
    config.to = {FSCCL_LAYOUT_PER_PARAM, kRanks, (rank + 1) % kRanks};
    return fsccl_redistribute(&config, buffers.data(), buffers.size(), comm, nullptr);
  };
  call.give_back = [] {};
  return call;
}

}  // namespace

const NamedCalls& agreements() {
  static const NamedCalls made = {
      {"comm_split", creation<fsccl_comm_t>(split, fsccl_comm_destroy)},
      {"comm_subset", creation<fsccl_comm_t>(subset, fsccl_comm_destroy)},
      {"pool_create", creation<fsccl_pool_t>(create_pool, fsccl_pool_destroy)},
      {"publisher_create", creation<fsccl_publisher_t>(create_publisher, fsccl_publisher_destroy)},
      {"unit_create", unit_creation(false)},
      {"unit_create of replicas", unit_creation(true)},
      {"verify_replicas", call_of_unit(verify_replicas, true)},
      {"pool_schedule", call_of_unit(schedule, false)},
      {"redistribute", redistribution},
  };
  return made;
}

}  // namespace fsccl::testing
