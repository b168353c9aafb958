// Tests HSDP on GPUs: sums over the replicas, and norms, have the bits of units on host memory;
// states can be made equal; and a rank that fails in one dimension ends the other.
#include <array>
#include <atomic>
#include <thread>

#include "../stand_in/nccl/control.h"
#include "fsccl/insight.h"
#include "on_gpu.h"

namespace fsccl::testing {
namespace {

class DeviceHsdp : public OnGpus {
 protected:
  void TearDown() override {
    OnGpus::TearDown();
    if (const stand_in_nccl::Control nccl; nccl.there()) {
      EXPECT_EQ(nccl.broken_rules(), "");
    }
  }
};
class DeviceMeshes : public DeviceHsdp,
                     public ::testing::WithParamInterface<std::pair<int, int>> {};

// Reduces some batches, of which only the last is summed over the replicas, as a program that
// accumulates does, and compares with the host's unit each time.
void train(TwinUnits& twins, Random& random, uint64_t* step) {
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  const uint64_t batches = 1 + random.below(3);
  for (uint64_t batch = 0; batch < batches && !::testing::Test::HasFailure(); batch++) {
    config.accumulate = batch > 0;
    config.defer_replicas = batch + 1 < batches;
    config.scale = random.below(2) ? 0 : 0.375;
    twins.reduce(config, random.below(2), ++*step);
    twins.compare_grads();
  }
}

TEST_P(DeviceMeshes, RandomUnitsTrainAsOnTheHost) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    OnGpu on(self);
    Random random(static_cast<uint64_t>(self.ranks) + 7);
    for (int i = 0; i < 12 && !HasFailure(); i++) {
      UnitCase c = random_unit(random);
      c.by_parameter = false;
      TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream, &mesh);
      if (HasFailure()) return;
      uint64_t step = 0;
      for (uint64_t version = 1; version <= 2 && !HasFailure(); version++) {
        twins.write_shards(version);  // other values on every rank
        twins.broadcast_state(i % groups);
        twins.unshard();
        twins.compare_params();
        twins.reshard();
        train(twins, random, &step);
        EXPECT_OK(fsccl_unit_verify_replicas(twins.get()));
      }
    }
  });
}

TEST_P(DeviceMeshes, TheStateGoesToTheNextUnshardOnAnyStream) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    OnGpu on(self);
    CudaStream* const other = on.gpu.stream();
    UnitCase c = simple_unit({{300, 40}, {17}}, 9);
    c.keep = FSCCL_KEEP_ALWAYS;  // broadcast_state() must drop the kept parameters
    c.marks_changes = true;
    TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream, &mesh);
    for (int root = 0; root < groups && !HasFailure(); root++) {
      twins.write_shards(static_cast<uint64_t>(root) + 1);
      EXPECT_EQ(fsccl_unit_verify_replicas(twins.get()),
                groups > 1 ? FSCCL_ERR_MISMATCH : FSCCL_OK);
      twins.broadcast_state(root);
      twins.set_stream(other);
      twins.unshard();
      twins.compare_params();
      twins.reshard();
      twins.set_stream(on.stream);
      EXPECT_OK(fsccl_unit_verify_replicas(twins.get()));
    }
  });
}

TEST_P(DeviceMeshes, InfinitiesOfAnyReplicaAreSeen) {
  const auto& [ranks, groups] = GetParam();
  run_ranks(ranks, [groups = groups](Rank& self) {
    const Mesh mesh(self, groups);
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(
        make_unit(simple_unit({{12, 2}}), mesh.shard, on.pool.get(), &unit, {}, {}, mesh.replicas));
    for (const bool bad : {true, false}) {
      fsccl_view_t grad{};
      ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
      const bool mine = bad && self.rank == self.ranks - 1;
      // infinity, or 1
      const std::vector<uint16_t> values(grad.count, mine ? uint16_t{0x7f80} : uint16_t{0x3f80});
      on.gpu.copy(grad.data, values.data(), values.size() * 2, on.stream);
      on.gpu.synchronize(on.stream);
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      ASSERT_OK(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr));
      EXPECT_EQ(result.finite, bad ? 0 : 1);
      fsccl_view_t shard{};
      ASSERT_OK(fsccl_unit_shard(unit, 0, &shard));
      if (!bad) {
        EXPECT_EQ(result.norm_squared, static_cast<double>(shard.count)) << "the mean of ones";
      }
    }
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

INSTANTIATE_TEST_SUITE_P(Gpus, DeviceMeshes,
                         ::testing::Values(std::pair{2, 2}, std::pair{4, 2}, std::pair{4, 4},
                                           std::pair{6, 3}, std::pair{2, 1}),
                         [](const auto& one) {
                           return std::to_string(one.param.first) + "in" +
                                  std::to_string(one.param.second);
                         });

// Each group has a pool of its own, so replicas do not reach each other's slots.
TEST_F(DeviceHsdp, APoolForEachGroup) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    Gpu gpu(self.rank % Gpu::count());
    const DevicePoolScope pool(mesh.shard, gpu.ordinal());
    const PoolScope host(self.comm);
    CudaStream* const stream = gpu.stream();
    Random random(5);
    if (const char* const transport = std::getenv("FSCCL_DEVICE_TRANSPORT");
        transport && std::string(transport) == "p2p") {
      fsccl_unit_t unit = nullptr;
      EXPECT_ERROR(
          make_unit(simple_unit({{8}}), mesh.shard, pool.get(), &unit, {}, {}, mesh.replicas),
          FSCCL_ERR_NOT_AVAILABLE, "replicate_comm", "without that rank");
      return;
    }
    for (int i = 0; i < 6 && !HasFailure(); i++) {
      UnitCase c = random_unit(random);
      c.by_parameter = false;
      TwinUnits twins(c, self, host.get(), pool.get(), gpu, stream, &mesh);
      uint64_t step = 0;
      for (int round = 0; round < 2 && !HasFailure(); round++) train(twins, random, &step);
    }
  });
}

// The replicate_comm has collectives on memory of GPUs from their first use on, and explains them.
TEST_F(DeviceHsdp, ARuleSaysHowReplicasSum) {
  if (Gpu::count() < 2) GTEST_SKIP() << "ranks on one GPU may wait for each other in the driver";
  const char* const asked = std::getenv("FSCCL_DEVICE_TRANSPORT");
  const std::string transport = asked ? asked : "auto";
  for (const bool ruled : {false, true}) {
    const Settings settings({{"FSCCL_PLAN", ruled ? "unit_unshard:256-=collectives" : ""}});
    run_ranks(2, [&](Rank& self) {
      const Mesh mesh(self, 2);
      OnGpu on(self);
      for (const int64_t elements : {16, 17}) {  // both replicas have 128 and 256 bytes of lines
        fsccl_unit_t unit = nullptr;
        ASSERT_OK(make_unit(simple_unit({{elements}}), mesh.shard, on.pool.get(), &unit, {}, {},
                            mesh.replicas));
        std::vector<char> text(1 << 16);
        ASSERT_OK(fsccl_explain(mesh.replicas, "all_gather", 256, text.data(), text.size()));
        const bool called = std::string(text.data()).find(R"("device")") != std::string::npos;
        const bool follows = ruled && elements == 17 && transport == "auto";
        EXPECT_EQ(called, follows || (transport != "auto" && transport != "p2p")) << text.data();
        EXPECT_OK(fsccl_unit_destroy(unit));
      }
    });
  }
}

TEST_F(DeviceHsdp, SumsAreToldOnceAndCannotBeAddedTo) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    OnGpu on(self);
    auto* const result =
        static_cast<fsccl_reduce_result_t*>(on.gpu.memory(sizeof(fsccl_reduce_result_t)));
    void* const moved[2] = {on.gpu.memory(15 * 4), on.gpu.memory(4)};
    UnitCase c = simple_unit({{6, 5}, {1}}, 4);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, mesh.shard, on.pool.get(), &unit, {}, {}, mesh.replicas));
    std::vector<size_t> ready;
    fsccl_view_t grad{};
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.shard_ready = [](void* context, fsccl_unit_t, size_t i) {
      static_cast<std::vector<size_t>*>(context)->push_back(i);
    };
    config.shard_ready_context = &ready;
    const std::vector<uint16_t> ones(30, 0x3f80);
    for (const bool defer : {true, false}) {
      ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
      on.gpu.copy(grad.data, ones.data(), 60, on.stream);
      ASSERT_OK(fsccl_unit_grad(unit, 1, on.stream, &grad));
      on.gpu.copy(grad.data, ones.data(), 2, on.stream);
      on.gpu.synchronize(on.stream);
      config.scale = 1;
      config.accumulate = !defer;
      config.defer_replicas = defer;
      config.result = result;
      config.sharded_grads = defer ? moved : nullptr;
      ASSERT_OK(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr));
      fsccl_reduce_result_t got{};
      std::memcpy(&got, on.gpu.read(result, sizeof got, on.stream).data(), sizeof got);
      const double each = defer ? 2 : 8;  // 2 ranks; then accumulated twice, over 2 groups
      const bool first = self.rank % 2 == 0;
      EXPECT_EQ(got.norm_squared, (first ? 16 : 15) * each * each);
      EXPECT_EQ(got.finite, 1);
      EXPECT_EQ(ready, defer   ? (std::vector<size_t>{})
                       : first ? (std::vector<size_t>{0, 1})
                               : (std::vector<size_t>{0}));
      fsccl_view_t sharded{};
      ASSERT_OK(fsccl_unit_sharded_grad(unit, 0, &sharded));
      EXPECT_EQ(sharded.data, moved[0]);
      float value = 0;
      std::memcpy(&value, on.gpu.read(moved[0], sizeof value, on.stream).data(), sizeof value);
      EXPECT_EQ(value, each);
    }
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
    config.accumulate = 1;
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr),
                 FSCCL_ERR_INVALID_STATE, "already summed", "defer_replicas");
    config.accumulate = 0;
    EXPECT_OK(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceHsdp, VerifyNamesTheFirstThatDiffers) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    OnGpu on(self);
    UnitCase c = simple_unit({{12, 7}, {36, 3}}, 3);
    TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream, &mesh);
    ASSERT_OK(fsccl_unit_broadcast_state(twins.get(), 0, on.stream, nullptr));
    EXPECT_OK(fsccl_unit_verify_replicas(twins.get()));
    if (self.rank == 3) {
      fsccl_view_t view{};
      ASSERT_OK(fsccl_unit_shard(twins.get(), 1, &view));
      const char odd = 1;
      on.gpu.copy(static_cast<char*>(view.data) + 5, &odd, 1, on.stream);
      on.gpu.synchronize(on.stream);
    }
    EXPECT_ERROR(fsccl_unit_verify_replicas(twins.get()), FSCCL_ERR_MISMATCH, "parameter 1",
                 "rank 1 of shard_comm", "rank 1 of replicate_comm", "fsccl_unit_broadcast_state");
    EXPECT_ERROR(fsccl_unit_broadcast_state(twins.get(), 2, on.stream, nullptr),
                 FSCCL_ERR_INVALID_ARGUMENT, "root 2", "0 .. 1");
    fsccl_work_t work = nullptr;
    EXPECT_ERROR(fsccl_unit_broadcast_state(twins.get(), 0, on.stream, &work),
                 FSCCL_ERR_NOT_AVAILABLE, "event");
    ASSERT_OK(fsccl_unit_broadcast_state(twins.get(), 1, on.stream, nullptr));
    EXPECT_OK(fsccl_unit_verify_replicas(twins.get()));
    fsccl_unit_t alone = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &alone));
    EXPECT_ERROR(fsccl_unit_broadcast_state(alone, 0, on.stream, nullptr), FSCCL_ERR_INVALID_STATE,
                 "no replicate_comm");
    EXPECT_ERROR(fsccl_unit_verify_replicas(alone), FSCCL_ERR_INVALID_STATE, "no replicate_comm");
    EXPECT_OK(fsccl_unit_destroy(alone));
  });
}

// A rank that waits for sums which can never be made is released, and its next call returns the
// error. This holds for the replicas of the group that failed, too.
TEST_F(DeviceHsdp, AnEndOfTheShardCommEndsTheSumOverTheReplicas) {
  std::atomic<int> waiting{0}, ended{0};
  run_ranks(4, [&](Rank& self) {
    const Mesh mesh(self, 2);
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{64, 3}}, 2), mesh.shard, on.pool.get(), &unit, {}, {},
                        mesh.replicas));
    fsccl_view_t grad{};
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
    if (self.rank == 1) {  // never reduces
      while (waiting < 3) std::this_thread::yield();
      ASSERT_OK(fsccl_comm_abort(mesh.shard));
    } else {
      const fsccl_status_t put = fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr);
      EXPECT_OK(put);
      waiting++;
      on.gpu.synchronize(on.stream);
      // The group of ranks 2 and 3 is whole. Rank 3 has heard of the failure from rank 1, its
      // replica, whose shard_comm ended.
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr), FSCCL_ERR_ABORTED,
                   "abort");
    }
    ended++;
    while (ended < 4) std::this_thread::yield();
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// The shard_comm stays whole when a replica ends the replicate_comm in the middle of a reduction.
TEST_F(DeviceHsdp, AnEndOfTheReplicateCommLeavesTheShardCommWhole) {
  std::atomic<int> over{0};
  run_ranks(2, [&](Rank& self) {
    const Mesh mesh(self, 2);
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{64, 3}}, 2), mesh.shard, on.pool.get(), &unit, {}, {},
                        mesh.replicas));
    fsccl_view_t grad{};
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
    if (self.rank == 0) {
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr), FSCCL_ERR_ABORTED,
                   "abort");
    } else {
      // Rank 0 is in its reduction by then, unless the machine is very slow.
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      ASSERT_OK(fsccl_comm_abort(mesh.replicas));
    }
    fsccl_status_t state = FSCCL_OK;
    ASSERT_OK(fsccl_comm_async_error(mesh.shard, &state));
    EXPECT_EQ(state, FSCCL_OK) << explain(state);
    over++;
    while (over < 2) std::this_thread::yield();
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// A call that waits in the driver for a stream blocks other calls of the process in the driver. As
// ranks are threads here, it would block the peer's call for which the stream waits. So the library
// must not wait in the driver for the results of a reduction.
TEST_F(DeviceHsdp, WhoWaitsForNumbersKeepsNoPeerOutOfTheDriver) {
  run_ranks(4, [](Rank& self) {
    const Mesh mesh(self, 2);
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{64, 3}}, 2), mesh.shard, on.pool.get(), &unit, {}, {},
                        mesh.replicas));
    const auto be_late = [&] {
      ASSERT_OK(fsccl_barrier(self.comm, nullptr, nullptr));
      if (self.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    };
    for (const bool deferred : {true, false}) {
      fsccl_view_t grad{};
      ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
      fsccl_reduce_result_t result{};
      fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
      config.result = &result;
      config.defer_replicas = deferred;
      be_late();
      ASSERT_OK(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr));
    }
    be_late();
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    EXPECT_OK(fsccl_unit_verify_replicas(unit));
    EXPECT_OK(fsccl_unit_reshard(unit, on.stream));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// This test does not run with NCCL, whose errors do not name the late rank.
TEST_F(DeviceHsdp, AReplicaThatIsLateIsNamed) {
  std::atomic<int> over{0};
  run_ranks(2,
            [&](Rank& self) {
              const Mesh mesh(self, 2);
              OnGpu on(self);
              fsccl_unit_t unit = nullptr;
              ASSERT_OK(make_unit(simple_unit({{64, 3}}, 2), mesh.shard, on.pool.get(), &unit, {},
                                  {}, mesh.replicas));
              fsccl_view_t grad{};
              ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
              if (self.rank == 0) {
                fsccl_reduce_result_t result{};
                fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
                config.result = &result;
                EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr),
                             FSCCL_ERR_TIMEOUT, "all_reduce of unit 'unit 2'",
                             "still waits for rank(s) 1");
              }
              over++;
              while (over < 2) std::this_thread::yield();
              EXPECT_OK(fsccl_unit_destroy(unit));
            },
            {.timeout_ms = 5000});
}

}  // namespace
}  // namespace fsccl::testing
