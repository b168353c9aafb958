// Tests units on GPUs: they give the same bits as units on host memory, in the order of streams,
// and no thread waits for a peer.
#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>

#include "capture.h"
#include "fsccl/insight.h"
#include "on_gpu.h"

namespace fsccl::testing {
namespace {

class DeviceUnit : public OnGpus {};
class DeviceUnits : public OnGpus, public ::testing::WithParamInterface<int> {};

void train(const UnitCase& c, const Rank& self, OnGpu& on, int steps = 2) {
  TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
  if (::testing::Test::HasFailure()) return;
  uint64_t version = 1;
  twins.write_shards(version);
  for (int step = 1; step <= steps; step++) {
    if (c.marks_changes) {
      EXPECT_OK(fsccl_unit_mark_changed(twins.get()));
      EXPECT_OK(fsccl_unit_mark_changed(twins.host()));
    }
    for (const fsccl_unshard_mode_t mode :
         {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE, FSCCL_UNSHARD_READ}) {
      twins.unshard(mode);
      twins.compare_params();
      if (mode == FSCCL_UNSHARD_WRITABLE || c.sharing == FSCCL_SHARING_COPY_ON_WRITE)
        twins.scribble();
      twins.reshard();
      if (::testing::Test::HasFailure()) return;
    }
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    twins.reduce(config, step % 2 == 0, static_cast<uint64_t>(step));
    twins.compare_grads();
    config.accumulate = 1;
    config.scale = 0.375;
    twins.reduce(config, false, static_cast<uint64_t>(step) + 100);
    twins.compare_grads();
    twins.write_shards(++version);
    if (::testing::Test::HasFailure()) return;
  }
}

TEST_P(DeviceUnits, EveryLayoutAndDtypeAsOnTheHost) {
  run_ranks(GetParam(), [](Rank& self) {
    OnGpu on(self);
    uint64_t seed = 1;
    for (const fsccl_layout_t layout :
         {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
      for (const fsccl_dtype_t wire : {FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32, FSCCL_FLOAT64})
        for (const fsccl_dtype_t reduce : {FSCCL_BFLOAT16, FSCCL_FLOAT32}) {
          UnitCase c = simple_unit({{7, 5}, {33}, {}, {3, 2, 4}}, seed++);
          c.layout = layout;
          if (layout == FSCCL_LAYOUT_RAGGED) c.params[0].block_rows = c.params[0].block_columns = 2;
          c.wire = wire;
          c.reduce = reduce;
          c.grad = seed % 3 ? FSCCL_FLOAT32 : wire;
          train(c, self, on);
          if (HasFailure()) return;
        }
  });
}

TEST_P(DeviceUnits, RandomOnesAsOnTheHost) {
  run_ranks(GetParam(), [](Rank& self) {
    OnGpu on(self);
    Random random(static_cast<uint64_t>(self.ranks) + 90);
    for (int i = 0; i < 25 && !HasFailure(); i++) {
      train(random_unit(random), self, on);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DeviceUnits, ::testing::Values(1, 2, 3, 4),
                         ::testing::PrintToStringParamName());

// If a unit has the algorithm "collectives", the ranks agree on a transport for them.
TEST_F(DeviceUnit, GoesAsTheRulesSay) {
  const auto explained = [](const Rank& self) {
    std::vector<char> text(1 << 16);
    EXPECT_OK(fsccl_explain(self.comm, "all_gather", 1 << 20, text.data(), text.size()));
    return std::string(text.data());
  };
  const bool free = !getenv("FSCCL_DEVICE_TRANSPORT");
  for (const char* const plan : {"unit_unshard=p2p", "unit_unshard=collectives"}) {
    const Settings settings{{"FSCCL_PLAN", plan}};
    run_ranks(2, [&](Rank& self) {
      OnGpu on(self);
      train(simple_unit({{7, 5}, {33}}), self, on);
      const std::string text = explained(self);
      if (free && std::string_view(plan) == "unit_unshard=p2p") {
        EXPECT_EQ(text.find(R"("device":)"), std::string::npos) << text;
        return;
      }
      const size_t unit = text.find(R"("unit":{"why":")");
      ASSERT_NE(unit, std::string::npos) << text;
      EXPECT_EQ(text.find("FSCCL_PLAN says so", unit) != std::string::npos,
                std::string_view(plan) == "unit_unshard=collectives")
          << text;
      EXPECT_NE(text.find(R"({"plan":"collectives","chosen":true)", unit), std::string::npos)
          << text;
    });
  }
}

// The step is like a training step: the next unit is gathered on one stream while the last one is
// read on another.
TEST_F(DeviceUnit, TwentyStepsWithPrefetchOnTwoStreams) {
  run_ranks(3, [](Rank& self) {
    OnGpu on(self);
    constexpr size_t kUnits = 4, kRows = 96, kColumns = 64;
    CudaStream* const compute = on.gpu.stream();
    std::vector<fsccl_unit_t> units(kUnits);
    std::vector<float*> seen;
    for (size_t u = 0; u < kUnits; u++) {
      UnitCase c = simple_unit({{kRows, kColumns}, {kColumns}}, u + 1);
      c.wire = c.reduce = FSCCL_FLOAT32;
      ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &units[u]));
      seen.push_back(static_cast<float*>(on.gpu.memory(kRows * kColumns * sizeof(float))));
    }
    const auto value = [](size_t unit, uint64_t step, uint64_t element) {
      return static_cast<float>(unit * 1'000'000 + step * 10'000 + element);
    };
    for (uint64_t step = 1; step <= 20; step++) {
      for (size_t u = 0; u < kUnits; u++) {  // stands for the optimizer
        fsccl_view_t shard{};
        ASSERT_OK(fsccl_unit_shard(units[u], 0, &shard));
        std::vector<float> values;
        for (uint64_t k = 0; k < shard.count; k++)
          values.push_back(value(u, step, shard.offset + k));
        on.gpu.copy(shard.data, values.data(), values.size() * sizeof(float), on.stream);
        on.gpu.synchronize(on.stream);
      }
      const auto gather = [&](size_t u) {
        ASSERT_OK(fsccl_unit_unshard(units[u], FSCCL_UNSHARD_READ, on.stream, nullptr));
      };
      gather(0);
      for (size_t u = 0; u < kUnits; u++) {
        on.gpu.order(on.stream, compute);
        if (u + 1 < kUnits) gather(u + 1);
        fsccl_view_t param{};
        ASSERT_OK(fsccl_unit_param(units[u], 0, &param));
        on.gpu.copy(seen[u], param.data, param.count * sizeof(float), compute);
        ASSERT_OK(fsccl_unit_reshard(units[u], compute));
      }
      ASSERT_OK(fsccl_pool_step(on.pool.get()));
      for (size_t u = 0; u < kUnits; u++) {
        const std::vector<char> bytes =
            on.gpu.read(seen[u], kRows * kColumns * sizeof(float), compute);
        for (uint64_t k = 0; k < kRows * kColumns; k++) {
          float got = 0;
          std::memcpy(&got, bytes.data() + k * sizeof got, sizeof got);
          ASSERT_EQ(got, value(u, step, k))
              << "unit " << u << " step " << step << " element " << k << " rank " << self.rank;
        }
      }
    }
    for (fsccl_unit_t unit : units) EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// Rank 0 holds the whole unit, so its gather ends at once, and it takes the same memory for the
// next unit while rank 1 still reads it.
TEST_F(DeviceUnit, ASlotIsNotWrittenWhileAPeerReadsIt) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    constexpr size_t kElements = 4u << 20;
    std::array<fsccl_unit_t, 2> units{};
    std::array<void*, 2> copies{};
    for (size_t u = 0; u < units.size(); u++) {
      UnitCase c = simple_unit({{1, static_cast<int64_t>(kElements)}}, u + 1);
      c.wire = FSCCL_FLOAT32;
      ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &units[u]));
      copies[u] = on.gpu.memory(kElements * sizeof(float));
      fsccl_view_t shard{};
      ASSERT_OK(fsccl_unit_shard(units[u], 0, &shard));
      ASSERT_EQ(shard.count, self.rank == 0 ? kElements : 0);
      const std::vector<float> values(shard.count, static_cast<float>(u + 1));
      on.gpu.copy(shard.data, values.data(), values.size() * sizeof(float), on.stream);
      on.gpu.synchronize(on.stream);
    }
    const void* places[2] = {};
    for (int round = 0; round < 4; round++) {
      for (size_t u = 0; u < units.size(); u++) {
        ASSERT_OK(fsccl_unit_unshard(units[u], FSCCL_UNSHARD_READ, on.stream, nullptr));
        fsccl_view_t param{};
        ASSERT_OK(fsccl_unit_param(units[u], 0, &param));
        places[u] = param.data;
        on.gpu.copy(copies[u], param.data, kElements * sizeof(float), on.stream);
        ASSERT_OK(fsccl_unit_reshard(units[u], on.stream));
      }
      ASSERT_EQ(places[0], places[1]) << "the test is about memory that is used again";
      for (size_t u = 0; u < units.size(); u++) {
        const std::vector<char> bytes =
            on.gpu.read(copies[u], kElements * sizeof(float), on.stream);
        const std::vector<float> wanted(kElements, static_cast<float>(u + 1));
        ASSERT_EQ(std::memcmp(bytes.data(), wanted.data(), bytes.size()), 0)
            << "unit " << u << " rank " << self.rank;
      }
      ASSERT_OK(fsccl_pool_step(on.pool.get()));
    }
    for (fsccl_unit_t unit : units) EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// Calls of the driver are counted over all ranks, which are threads here.
TEST_F(DeviceUnit, AUnitIsOneLaunchOneBatchAndTwoSignals) {
  const stand_in::Control& control = control_;
  if (!control.there()) GTEST_SKIP() << "calls are counted by the stand-in for CUDA's driver";
  constexpr int kRanks = 3;
  std::barrier all(kRanks);
  std::array<uint64_t, 4> before{};
  const std::array<const char*, 4> kCalls = {"cuLaunchKernel", "cuMemcpyBatchAsync_v2",
                                             "cuMemcpyAsync", "cuStreamBatchMemOp_v2"};
  const auto expect = [&](const Rank& self, std::array<uint64_t, 4> wanted, const char* what) {
    all.arrive_and_wait();
    for (size_t i = 0; self.rank == 0 && i < kCalls.size(); i++)
      EXPECT_EQ(control.calls(kCalls[i]) - before[i], wanted[i] * kRanks)
          << kCalls[i] << " of " << what;
    all.arrive_and_wait();
  };
  const auto begin = [&](const Rank& self) {
    all.arrive_and_wait();
    for (size_t i = 0; self.rank == 0 && i < kCalls.size(); i++)
      before[i] = control.calls(kCalls[i]);
    all.arrive_and_wait();
  };
  run_ranks(kRanks, [&](Rank& self) {
    OnGpu on(self);
    UnitCase c = simple_unit({}, 5);
    for (int i = 0; i < 12; i++) c.params.push_back({{600, 256}});  // copy engines move the pieces
    c.keep = FSCCL_KEEP_ALWAYS;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    begin(self);
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    expect(self, {1, 1, 0, 4}, "a gather: it begins, ready, waits, done");
    // If a kernel were loaded at its first launch only, that could be while a stream waits for a
    // peer, and the load would wait for that stream.
    EXPECT_EQ(control.calls("cuFuncLoad"), control.calls("cuModuleGetFunction"));
    ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
    begin(self);
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    expect(self, {0, 0, 0, 4}, "a kept slot: nothing moves, and ranks agree");
    ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
    fsccl_view_t grad{};
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
    begin(self);
    ASSERT_OK(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr));
    expect(self, {1, 0, 0, 4}, "a reduction");
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceUnit, KeptContentsLastUntilMarkChanged) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    UnitCase c = simple_unit({{9, 5}, {4}}, 3);
    c.keep = FSCCL_KEEP_ALWAYS;
    c.marks_changes = true;
    TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
    twins.write_shards(1);
    for (int i = 0; i < 3; i++) {
      twins.unshard();
      twins.compare_params();
      twins.reshard();
      if (i == 1) {
        twins.write_shards(2);
        EXPECT_OK(fsccl_unit_mark_changed(twins.get()));
        EXPECT_OK(fsccl_unit_mark_changed(twins.host()));
      }
    }
  });
}

// The pool names the owners of slots in the first step and in steps that follow the plan.
TEST_F(DeviceUnit, ThePoolTellsWhoseItsSlotsAre) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    constexpr uint64_t kSteps = 6;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{6, 5}}, 4), self.comm, on.pool.get(), &unit));
    struct Told {
      std::map<std::string, uint64_t> taken, live;
      std::set<std::string> owners;
    };
    const auto told = [&] {
      Told all;
      EXPECT_OK(fsccl_pool_owners(
          on.pool.get(),
          [](void* context, const fsccl_pool_owner_t* use) {
            if (std::string(use->kind) == "block") return;
            auto& told_of = *static_cast<Told*>(context);
            told_of.taken[use->kind] += use->allocations;
            told_of.live[use->kind] += use->live_bytes;
            told_of.owners.insert(use->owner ? use->owner : "nobody");
          },
          &all));
      return all;
    };
    for (uint64_t step = 1; step <= kSteps; step++) {
      ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
      fsccl_view_t grad{};
      ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
      EXPECT_THAT(told().live, ::testing::Each(::testing::Pair(::testing::_, 4096)));
      ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
      ASSERT_OK(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr));
      ASSERT_OK(fsccl_pool_step(on.pool.get()));
      EXPECT_THAT(told().taken, ::testing::ElementsAre(::testing::Pair("gradients", step),
                                                       ::testing::Pair("parameters", step)));
      EXPECT_THAT(told().live, ::testing::Each(::testing::Pair(::testing::_, 0)));
    }
    EXPECT_EQ(told().owners.size(), 1u);
    EXPECT_EQ(told().owners.count("nobody"), 0u);
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceUnit, ResultsOnTheDeviceAndMovedGradients) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    auto* const result =
        static_cast<fsccl_reduce_result_t*>(on.gpu.memory(sizeof(fsccl_reduce_result_t)));
    void* const moved[2] = {on.gpu.memory(15 * 4), on.gpu.memory(4)};
    UnitCase c = simple_unit({{6, 5}, {1}}, 4);  // rank 1 has nothing of the second
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    fsccl_view_t grad{};
    ASSERT_OK(fsccl_unit_grad(unit, 0, on.stream, &grad));
    const std::vector<uint16_t> ones(30, 0x3f80);  // 1 in bfloat16
    on.gpu.copy(grad.data, ones.data(), 60, on.stream);
    ASSERT_OK(fsccl_unit_grad(unit, 1, on.stream, &grad));
    on.gpu.copy(grad.data, ones.data(), 2, on.stream);
    on.gpu.synchronize(on.stream);

    std::vector<size_t> ready;
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.scale = 1;
    config.result = result;
    config.sharded_grads = moved;
    config.shard_ready = [](void* context, fsccl_unit_t, size_t i) {
      static_cast<std::vector<size_t>*>(context)->push_back(i);
    };
    config.shard_ready_context = &ready;
    ASSERT_OK(fsccl_unit_reduce_grads(unit, &config, on.stream, nullptr));
    EXPECT_EQ(ready, self.rank == 0 ? (std::vector<size_t>{0, 1}) : (std::vector<size_t>{0}));
    fsccl_reduce_result_t got{};
    std::memcpy(&got, on.gpu.read(result, sizeof got, on.stream).data(), sizeof got);
    EXPECT_EQ(got.norm_squared, self.rank == 0 ? 16 * 4.0 : 15 * 4.0);
    EXPECT_EQ(got.finite, 1);
    fsccl_view_t sharded{};
    ASSERT_OK(fsccl_unit_sharded_grad(unit, 0, &sharded));
    EXPECT_EQ(sharded.data, moved[0]);
    float value = 0;
    std::memcpy(&value, on.gpu.read(moved[0], sizeof value, on.stream).data(), sizeof value);
    EXPECT_EQ(value, 2);
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// A rank that comes late with gradients of its own asks the driver for nothing. If the ranks have
// one GPU, the driver would wait there for the streams of the others, which wait for this rank.
TEST_F(DeviceUnit, GradientsOfALateRankAreReduced) {
  const Settings settings({{"FSCCL_TIMEOUT_MS", "20000"}});
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    // The table of the gradients' addresses is longer than any table before.
    TwinUnits twins(simple_unit(std::vector<std::vector<int64_t>>(2000, {8})), self, on.host.get(),
                    on.pool.get(), on.gpu, on.stream);
    const fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    twins.reduce(config, false, 1);  // makes the memory of the slots
    twins.compare_grads();
    if (self.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    twins.reduce(config, true, 2);
    twins.compare_grads();
  });
}

// The slots have 2, 4 and 1 pages. Live memory falls with each slot that is given back, and giving
// one back twice is refused.
TEST_F(DeviceUnit, ByParameterASlotIsGivenBackBeforeTheOthers) {
  run_ranks(3, [](Rank& self) {
    OnGpu on(self);
    UnitCase c = simple_unit({{4096}, {64, 128}, {2048}}, 7);
    c.by_parameter = true;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    const auto live = [&] {
      fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
      EXPECT_OK(fsccl_pool_stats(on.pool.get(), &stats));
      return stats.collective_live_bytes;
    };
    EXPECT_EQ(live(), 0u);
    fsccl_view_t view{};
    for (int round = 0; round < 3; round++) {
      ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
      const uint64_t all = live();
      ASSERT_OK(fsccl_unit_release(unit, 1, on.stream));
      EXPECT_EQ(live() * 7, all * 3);
      EXPECT_ERROR(fsccl_unit_param(unit, 1, &view), FSCCL_ERR_INVALID_STATE, "released");
      EXPECT_ERROR(fsccl_unit_release(unit, 1, on.stream), FSCCL_ERR_INVALID_STATE, "released");
      ASSERT_OK(fsccl_unit_param(unit, 2, &view));
      ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
      EXPECT_EQ(live(), 0u);
    }
    fsccl_reduce_config_t first = FSCCL_REDUCE_CONFIG_INIT;
    first.first = 0, first.count = 1;
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit, &first, on.stream, nullptr), FSCCL_ERR_INVALID_STATE,
                 "no gradients", "parameter 0");
    for (const size_t i : {0, 2}) ASSERT_OK(fsccl_unit_grad(unit, i, on.stream, &view));
    EXPECT_GT(live(), 0u);
    ASSERT_OK(fsccl_unit_reduce_grads(unit, &first, on.stream, nullptr));
    EXPECT_GT(live(), 0u);
    ASSERT_OK(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr));
    EXPECT_EQ(live(), 0u) << "the rest that grad() was called for";
    ASSERT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceUnit, WhatItDoesNotDoItSays) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    const UnitCase c = simple_unit({{8}}, 6);
    fsccl_unit_t unit = nullptr;
    std::vector<char> on_host(64);
    EXPECT_ERROR(make_unit(c, self.comm, on.pool.get(), &unit, {on_host.data()}),
                 FSCCL_ERR_INVALID_ARGUMENT, "host memory", "device");
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    fsccl_work_t work = nullptr;
    EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, &work),
                 FSCCL_ERR_NOT_AVAILABLE, "event");
    EXPECT_ERROR(fsccl_unit_reshard(unit, on.stream), FSCCL_ERR_INVALID_STATE, "not unsharded");
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_param(unit, 0, &view), FSCCL_ERR_INVALID_STATE, "unshard");
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr),
                 FSCCL_ERR_INVALID_STATE, "no gradients");
    EXPECT_ERROR(fsccl_unit_release(unit, 0, on.stream), FSCCL_ERR_INVALID_STATE, "reshard");
    // With a GPU for each rank the stream is the legacy default stream, which takes no batches of
    // copies. Ranks on one GPU would share it, as they are threads.
    CudaStream* const stream = Gpu::count() < 2 ? on.stream : nullptr;
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr));
    EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr),
                 FSCCL_ERR_INVALID_STATE, "already");
    const void* one[] = {nullptr};
    EXPECT_ERROR(fsccl_unit_set_shards(unit, const_cast<void* const*>(one)),
                 FSCCL_ERR_INVALID_STATE, "reshard it");
    ASSERT_OK(fsccl_unit_reshard(unit, stream));
    fsccl_unit_t host = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.host.get(), &host));
    const auto refused = [](fsccl_status_t status) {
      expect_error(status, FSCCL_ERR_INVALID_ARGUMENT, {"stream is", "host memory", "give NULL"},
                   __FILE__, __LINE__);
    };
    refused(fsccl_unit_unshard(host, FSCCL_UNSHARD_READ, on.stream, nullptr));
    refused(fsccl_unit_grad(host, 0, on.stream, &view));
    refused(fsccl_unit_reduce_grads(host, nullptr, on.stream, nullptr));
    ASSERT_OK(fsccl_unit_unshard(host, FSCCL_UNSHARD_READ, nullptr, nullptr));
    refused(fsccl_unit_reshard(host, on.stream));
    ASSERT_OK(fsccl_unit_reshard(host, nullptr));
    EXPECT_OK(fsccl_unit_destroy(host));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// A graph would repeat the signals and slots of one step. So nothing of a unit gets into a graph,
// and the unit can be used after the capture.
void refuses_captures(Rank& self, bool by_parameter) {
  OnGpu on(self);
  UnitCase c = simple_unit({{9, 5}, {4}}, 3);
  c.by_parameter = by_parameter;
  TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
  const fsccl_unit_t unit = twins.get();
  twins.write_shards(1);
  fsccl_view_t view{};
  const auto while_captured = [&](const auto& refused) {
    const Capture capture(on.gpu.ordinal(), on.stream);
    refused();
  };
  for (int step = 1; step <= 2; step++) {
    while_captured([&] {
      EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr),
                   FSCCL_ERR_NOT_AVAILABLE, "captured", "outside");
      EXPECT_ERROR(fsccl_unit_grad(unit, 0, on.stream, &view), FSCCL_ERR_NOT_AVAILABLE, "captured");
    });
    twins.unshard();
    twins.compare_params();
    while_captured([&] {
      EXPECT_ERROR(fsccl_unit_reshard(unit, on.stream), FSCCL_ERR_NOT_AVAILABLE, "captured");
    });
    twins.reshard();
    twins.write_grads(static_cast<uint64_t>(step));
    while_captured([&] {
      EXPECT_ERROR(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr),
                   FSCCL_ERR_NOT_AVAILABLE, "captured");
    });
    twins.reduce(FSCCL_REDUCE_CONFIG_INIT, false, static_cast<uint64_t>(step));
    twins.compare_grads();
  }
}
TEST_F(DeviceUnit, ACaptureIsRefusedBeforeAnythingIsPutOnTheStream) {
  for (const bool by_parameter : {false, true})
    run_ranks(2, [&](Rank& self) { refuses_captures(self, by_parameter); });
}

// The pool cannot follow cudaStreamPerThread. A call that is given this stream changes nothing, so
// that it can be made again with another one.
TEST_F(DeviceUnit, AStreamThatThePoolCannotFollowIsRefusedBeforeAnythingChanges) {
  for (const bool by_parameter : {false, true})
    run_ranks(2, [&](Rank& self) {
      OnGpu on(self);
      UnitCase c = simple_unit({{9, 5}, {4}}, 3);
      c.by_parameter = by_parameter;
      TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
      const fsccl_unit_t unit = twins.get();
      auto* const of_thread = reinterpret_cast<CudaStream*>(2);
      const auto refused = [](fsccl_status_t status) {
        expect_error(status, FSCCL_ERR_INVALID_ARGUMENT, {"cudaStreamPerThread"}, __FILE__,
                     __LINE__);
      };
      fsccl_view_t view{};
      for (uint64_t step = 1; step <= 2; step++) {
        twins.write_shards(step);
        refused(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, of_thread, nullptr));
        twins.unshard();
        twins.compare_params();
        refused(fsccl_unit_reshard(unit, of_thread));
        twins.reshard();
        refused(fsccl_unit_grad(unit, 0, of_thread, &view));
        twins.write_grads(step);
        refused(fsccl_unit_reduce_grads(unit, nullptr, of_thread, nullptr));
        twins.reduce(FSCCL_REDUCE_CONFIG_INIT, false, step);
        twins.compare_grads();
      }
      fsccl_status_t state = FSCCL_OK;
      EXPECT_OK(fsccl_comm_async_error(self.comm, &state));
      EXPECT_EQ(state, FSCCL_OK);
    });
}

// The default stream cannot be used while a stream that blocks it is captured.
TEST_F(DeviceUnit, IsMadeWhileAStreamThatBlocksIsCaptured) {
  run_ranks(1, [](Rank& self) {
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    {
      const Capture capture(on.gpu.ordinal(), on.gpu.blocking_stream());
      ASSERT_OK(make_unit(simple_unit({{64}}, 1), self.comm, on.pool.get(), &unit));
      EXPECT_ERROR(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr),
                   FSCCL_ERR_NOT_AVAILABLE, "captured");
    }
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// The pool used one stream only, so it recorded no event there while the unit lived. It must still
// be able to end, and give its slots back, while another stream is captured.
TEST_F(DeviceUnit, APoolEndsBesideACapture) {
  const uint64_t before = control_.used_bytes(0);
  run_ranks(1, [](Rank& self) {
    Gpu gpu(0);
    CudaStream* const stream = gpu.stream();
    std::optional<Capture> capture;
    const DevicePoolScope pool(self.comm, 0);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(simple_unit({{64}}, 1), self.comm, pool.get(), &unit, {gpu.memory(256)},
                        {gpu.memory(256)}));
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, stream, nullptr));
    ASSERT_OK(fsccl_unit_reshard(unit, stream));
    EXPECT_OK(fsccl_unit_destroy(unit));
    capture.emplace(0, gpu.stream());
  });
  if (control_.there()) {
    EXPECT_LE(control_.used_bytes(0), before + (1 << 20)) << "tables are kept, slots are not";
  }
}

// The legacy default stream may be passed as NULL or as CU_STREAM_LEGACY. It takes no batches of
// copies. A process has one such stream on each GPU, and ranks that are threads would wait on it
// for work that they issue later. So each rank needs a GPU of its own, and with one GPU there is
// one rank.
TEST_F(DeviceUnit, TheLegacyStreamServes) {
  run_ranks(std::min(Gpu::count(), 2), [](Rank& self) {
    OnGpu on(self);
    TwinUnits twins(simple_unit({{600, 256}, {4}}, 3), self, on.host.get(), on.pool.get(), on.gpu,
                    nullptr);
    for (uint64_t step = 1; step <= 2; step++) {
      twins.set_stream(reinterpret_cast<CudaStream*>(uintptr_t{step - 1}));
      twins.write_shards(step);
      twins.unshard();
      twins.compare_params();
      twins.reshard();
      twins.reduce(FSCCL_REDUCE_CONFIG_INIT, false, step);
      twins.compare_grads();
    }
  });
}

TEST_F(DeviceUnit, DefinitionsAreCompared) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(
        make_unit(simple_unit({{8}, {self.rank ? 4 : 5}}), self.comm, on.pool.get(), &unit),
        FSCCL_ERR_MISMATCH, "parameter 1", "rank 0");
  });
}

TEST_F(DeviceUnit, ADeclaredStepPlansItsSlots) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    std::array<fsccl_unit_t, 2> units{};
    for (size_t u = 0; u < 2; u++)
      ASSERT_OK(make_unit(simple_unit({{64, 64}}, u + 1), self.comm, on.pool.get(), &units[u]));
    std::vector<fsccl_event_t> events;
    for (fsccl_unit_t unit : units) {
      events.push_back({FSCCL_EVENT_UNSHARD, unit, 0, 0});
      events.push_back({FSCCL_EVENT_RESHARD, unit, 0, 0});
    }
    ASSERT_OK(fsccl_pool_schedule(on.pool.get(), events.data(), events.size()));
    std::swap(events[0], events[1]);
    EXPECT_ERROR(fsccl_pool_schedule(on.pool.get(), events.data(), events.size()),
                 FSCCL_ERR_INVALID_ARGUMENT, "event 0", "not held");
    for (int step = 0; step < 2; step++) {
      for (fsccl_unit_t unit : units) {
        ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
        ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
      }
      ASSERT_OK(fsccl_pool_step(on.pool.get()));
    }
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    ASSERT_OK(fsccl_pool_stats(on.pool.get(), &stats));
    EXPECT_EQ(stats.plan_misses, 0u);
    EXPECT_EQ(stats.plan_hits, 4u);
    for (fsccl_unit_t unit : units) EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// Two slots are given back one by one. A tied parameter stands for its owner.
TEST_F(DeviceUnit, ADeclaredStepPlansSlotsByParameter) {
  run_ranks(2, [](Rank& self) {
    OnGpu on(self);
    UnitCase c = simple_unit({{64, 64}, {128}, {64, 64}}, 8);
    c.params[2].tied_to = 0;
    c.by_parameter = true;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    const auto refused = [&](const fsccl_event_t& event, const char* word) {
      EXPECT_ERROR(fsccl_pool_schedule(on.pool.get(), &event, 1), FSCCL_ERR_INVALID_ARGUMENT, word);
    };
    refused({FSCCL_EVENT_UNSHARD, unit, 0, 1}, "whole");
    refused({FSCCL_EVENT_GRAD, unit, 2, 2}, "3 parameters, not 2 from 2 on");
    refused({FSCCL_EVENT_RELEASE, unit, 1, 1}, "not held");
    const std::vector<fsccl_event_t> events = {
        {FSCCL_EVENT_UNSHARD, unit, 0, 0}, {FSCCL_EVENT_RELEASE, unit, 2, 1},
        {FSCCL_EVENT_RESHARD, unit, 0, 0}, {FSCCL_EVENT_GRAD, unit, 0, 2},
        {FSCCL_EVENT_REDUCE, unit, 1, 1},  {FSCCL_EVENT_REDUCE, unit, 0, 0}};
    ASSERT_OK(fsccl_pool_schedule(on.pool.get(), events.data(), events.size()));
    fsccl_reduce_config_t second = FSCCL_REDUCE_CONFIG_INIT;
    second.first = 1, second.count = 1;
    fsccl_view_t view{};
    for (int step = 0; step < 2; step++) {
      ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
      ASSERT_OK(fsccl_unit_release(unit, 2, on.stream));
      ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
      for (const size_t i : {0, 1}) ASSERT_OK(fsccl_unit_grad(unit, i, on.stream, &view));
      ASSERT_OK(fsccl_unit_reduce_grads(unit, &second, on.stream, nullptr));
      ASSERT_OK(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr));
      ASSERT_OK(fsccl_pool_step(on.pool.get()));
    }
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    ASSERT_OK(fsccl_pool_stats(on.pool.get(), &stats));
    EXPECT_EQ(stats.plan_misses, 0u);
    EXPECT_EQ(stats.plan_hits, 8u);
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

}  // namespace
}  // namespace fsccl::testing
