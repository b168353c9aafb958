// Tests units on GPUs whose parameters are gathered, or whose gradients are reduced, with a block
// codec: every bit is that of a unit on host memory with the same codec. The tests run on one host,
// where a codec has the scope FSCCL_CODEC_EVERYWHERE, and between hosts (TEST_HOSTS). On GPUs each
// rank encodes its gradients, so those tests have that scope everywhere.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <sstream>
#include <thread>

#include "fsccl/codec.h"
#include "fsccl/insight.h"
#include "on_gpu.h"

namespace fsccl::testing {
namespace {

fsccl_codec_t codec_of(fsccl_codec_kind_t kind, uint32_t block = 0) {
  fsccl_codec_t codec = FSCCL_CODEC_INIT;
  codec.kind = kind;
  codec.block = block;
  codec.scope = hosts_given() ? FSCCL_CODEC_BETWEEN_HOSTS : FSCCL_CODEC_EVERYWHERE;
  return codec;
}

fsccl_codec_report_t report_of(fsccl_unit_t unit) {
  fsccl_codec_report_t made = FSCCL_CODEC_REPORT_INIT;
  EXPECT_OK(fsccl_unit_codec(unit, &made));
  return made;
}

// Runs a test on ranks with GPUs. Without nvcc the library has no kernels, and the test does
// nothing. Ranks may be processes that were forked, so nothing of the driver is used before.
void run_on_gpus(int ranks, const std::function<void(Rank&, OnGpu&)>& test,
                 const RanksOptions& options = {}) {
  run_ranks(
      ranks,
      [&](Rank& self) {
        if (!Gpu::there()) return;
        OnGpu on(self);
        fsccl_unit_t unit = nullptr;
        const fsccl_status_t made = make_unit(simple_unit({{1}}), self.comm, on.pool.get(), &unit);
        if (made == FSCCL_ERR_NOT_AVAILABLE) return;
        ASSERT_OK(made);
        ASSERT_OK(fsccl_unit_destroy(unit));
        test(self, on);
        const stand_in::Control control;
        if (hosts_given() && control.there()) {
          EXPECT_EQ(control.broken_rules(), "");
        }
      },
      options);
}

class DeviceCodec : public ::testing::Test {
 protected:
  void TearDown() override {
    if (hosts_given()) return;  // the ranks are processes, which have looked
    const stand_in::Control control;
    if (control.there()) {
      EXPECT_EQ(control.broken_rules(), "");
    }
  }
};

void mark_changed(const TwinUnits& twins) {
  EXPECT_OK(fsccl_unit_mark_changed(twins.get()));
  EXPECT_OK(fsccl_unit_mark_changed(twins.host()));
}

// Writes a float to an element of this rank's shard of a parameter, in both units.
void poke(const TwinUnits& twins, OnGpu& on, size_t param, uint64_t element, float value) {
  fsccl_view_t host{}, device{};
  ASSERT_OK(fsccl_unit_shard(twins.host(), param, &host));
  ASSERT_OK(fsccl_unit_shard(twins.get(), param, &device));
  if (element >= host.count) return;
  static_cast<float*>(host.data)[element] = value;
  on.gpu.copy(static_cast<float*>(device.data) + element, &value, sizeof value, on.stream);
  on.gpu.synchronize(on.stream);
}

// Gathers both units in some steps and compares the bits, and what the codecs report.
void gathers_alike(const UnitCase& c, OnGpu& on, const Rank& self) {
  TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
  if (::testing::Test::HasFailure()) return;
  for (uint64_t step = 1; step <= 2; step++) {
    twins.write_shards(step);
    for (size_t i = 0; i < c.params.size(); i++)
      for (uint64_t k = 0; c.params[i].dtype == FSCCL_FLOAT32 && k < 40'000; k += 977)
        poke(twins, on, i, k, 1e-3f * static_cast<float>(k + step));
    mark_changed(twins);
    for (const fsccl_unshard_mode_t mode :
         {FSCCL_UNSHARD_READ, FSCCL_UNSHARD_READ, FSCCL_UNSHARD_WRITABLE}) {
      twins.unshard(mode);
      twins.compare_params();
      if (mode == FSCCL_UNSHARD_WRITABLE) twins.scribble();
      twins.reshard();
      if (::testing::Test::HasFailure()) return;
    }
  }
  const fsccl_codec_report_t host = report_of(twins.host()), device = report_of(twins.get());
  EXPECT_STREQ(device.gather_codec, host.gather_codec);
  if (!host.gathers) return;  // this rank has no lane
  EXPECT_EQ(device.gathers, host.gathers);
  EXPECT_EQ(device.coded, device.gathers);
  EXPECT_GT(device.state_bytes, 0u);
  EXPECT_EQ(device.bound, host.bound);
  // A host with more ranks than another one encodes several ranks' pieces on one rank.
  const std::vector<int>& placed = host_of_ranks();
  if (hosts_given() && std::set<int>(placed.begin(), placed.end()).size() != placed.size()) return;
  EXPECT_EQ(device.blocks, host.blocks) << "encoded after a change only";
  EXPECT_EQ(device.exact_blocks, host.exact_blocks);
  EXPECT_EQ(device.beyond_bound, 0u);
  if (!c.by_parameter) {  // there each parameter has its own count of measured blocks
    EXPECT_EQ(device.audited_blocks, host.audited_blocks);
    EXPECT_EQ(device.max_error, host.max_error);
  }
  EXPECT_EQ(device.plain_bytes, host.plain_bytes);
}

UnitCase case_of(fsccl_codec_kind_t kind, uint32_t block = 0) {
  UnitCase c = simple_unit({{70, 33}, {33}, {}, {3, 2, 4}, {129, 257}});
  c.gather_codec = codec_of(kind, block);
  return c;
}

TEST_F(DeviceCodec, EveryLayoutTypeAndKindAsOnTheHost) {
  for (const int ranks : {2, 3, 4})
    run_on_gpus(ranks, [](Rank& self, OnGpu& on) {
      uint64_t seed = 1;
      for (const fsccl_layout_t layout :
           {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
        for (const fsccl_codec_kind_t kind :
             {FSCCL_CODEC_INT8, FSCCL_CODEC_FP8, FSCCL_CODEC_MXFP8}) {
          UnitCase c = case_of(kind, seed % 3 ? 0 : 256);
          c.seed = seed++;
          c.layout = layout;
          c.wire = seed % 3 == 0 ? FSCCL_FLOAT32 : seed % 3 == 1 ? FSCCL_FLOAT16 : FSCCL_BFLOAT16;
          if (layout == FSCCL_LAYOUT_RAGGED) c.params[0].block_rows = c.params[0].block_columns = 2;
          gathers_alike(c, on, self);
          if (HasFailure()) return;
        }
    });
}

TEST_F(DeviceCodec, OfFrozenAndTiedParametersAndOtherShards) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = case_of(FSCCL_CODEC_INT8);
    c.params[1].dtype = FSCCL_BFLOAT16;
    c.params[1].frozen = true;
    c.params.push_back(c.params[0]);
    c.params.back().tied_to = 0;
    gathers_alike(c, on, self);
  });
}

TEST_F(DeviceCodec, ByParameterAndKeptAsOnTheHost) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = case_of(FSCCL_CODEC_FP8);
    c.keep = FSCCL_KEEP_ALWAYS;
    gathers_alike(c, on, self);
  });
  run_on_gpus(3, [](Rank& self, OnGpu& on) {
    UnitCase c = case_of(FSCCL_CODEC_FP8);
    c.by_parameter = true;
    gathers_alike(c, on, self);
  });
}

TEST_F(DeviceCodec, HostsOfAnyShape) {
  if (!hosts_given()) GTEST_SKIP() << "needs hosts";
  for (const std::vector<int>& hosts : {std::vector<int>{0, 1, 1}, {1, 0, 1, 0}, {0, 0, 0, 1, 1}})
    run_on_gpus(static_cast<int>(hosts.size()),
                [](Rank& self, OnGpu& on) { gathers_alike(case_of(FSCCL_CODEC_INT8), on, self); },
                {.hosts = hosts});
}

// The elements of some blocks go exactly, of which the last block of a parameter is one.
TEST_F(DeviceCodec, WhatIsTooFarGoesExactly) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    for (const fsccl_dtype_t wire : {FSCCL_BFLOAT16, FSCCL_FLOAT32}) {
      UnitCase c = simple_unit({{100, 257}, {2, 17}});
      c.wire = wire;
      c.gather_codec = codec_of(FSCCL_CODEC_INT8, 32);
      TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
      if (HasFailure()) return;
      for (uint64_t step = 1; step <= 3; step++) {
        twins.write_shards(step);
        const bool far = step != 2 && self.rank != 0;
        poke(twins, on, 0, 100, far ? NAN : 1.0f);
        poke(twins, on, 0, 5000, far ? -INFINITY : 2.0f);
        poke(twins, on, 1, 16, far ? 1e38f : 3.0f);
        mark_changed(twins);
        twins.unshard();
        twins.compare_params();
        twins.reshard();
      }
    }
  });
}

// Blocks with a larger error than the program allows go exactly, as on the host.
TEST_F(DeviceCodec, MaxRelativeErrorAsOnTheHost) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    for (const bool by_parameter : {false, true})
      for (const fsccl_codec_kind_t kind : {FSCCL_CODEC_INT8, FSCCL_CODEC_FP8}) {
        UnitCase c = simple_unit({{200, 257}, {2, 17}});
        c.by_parameter = by_parameter;
        c.gather_codec = codec_of(kind, 64);
        c.gather_codec.max_relative_error = 0.002;
        TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
        if (HasFailure()) return;
        twins.write_shards(1);
        const fsccl_view_t shard = [&] {
          fsccl_view_t view{};
          EXPECT_OK(fsccl_unit_shard(twins.host(), 0, &view));
          return view;
        }();
        // Zeros and ones have no error. The other elements lie between two codes of their kind.
        const float between = kind == FSCCL_CODEC_INT8 ? 0.0595f : 0.37f;
        for (uint64_t i = 0; i < shard.count; i++) poke(twins, on, 0, i, i % 64 ? 0.0f : 1.0f);
        for (uint64_t i = 1000; i < shard.count; i += 2000) poke(twins, on, 0, i, between);
        fsccl_view_t small{};
        EXPECT_OK(fsccl_unit_shard(twins.host(), 1, &small));
        for (uint64_t i = 0; i < small.count; i++) poke(twins, on, 1, i, 1.0f);
        mark_changed(twins);
        twins.unshard();
        twins.compare_params();
        twins.reshard();
        const fsccl_codec_report_t device = report_of(twins.get()), host = report_of(twins.host());
        EXPECT_GT(device.exact_blocks, 0u);
        EXPECT_EQ(device.audited_blocks, device.blocks);
        EXPECT_LE(device.max_error, 0.002);
        if (!host.gathers) continue;  // this rank has no lane
        EXPECT_EQ(device.exact_blocks, host.exact_blocks);
        EXPECT_EQ(device.audited_blocks, host.audited_blocks);
        EXPECT_EQ(device.max_error, host.max_error);
        if (HasFailure()) return;
      }
  });
}

// A host sends a part plain if too many of its blocks have larger errors. A GPU cannot.
TEST_F(DeviceCodec, TooManyErrorsAreNamedOnEveryRank) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = simple_unit({{100, 257}});
    c.gather_codec = codec_of(FSCCL_CODEC_FP8);
    c.gather_codec.max_relative_error = 1e-7;
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    fsccl_view_t shard{};
    ASSERT_OK(fsccl_unit_shard(unit, 0, &shard));
    std::vector<float> values(shard.count);
    for (uint64_t i = 0; i < shard.count; i++)
      values[i] = self.rank == 0 ? static_cast<float>(i % 83) : 1.0f;
    on.gpu.copy(shard.data, values.data(), values.size() * sizeof(float), on.stream);
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    on.gpu.synchronize(on.stream);
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_param(unit, 0, &view), FSCCL_ERR_PROTOCOL, "rank 0's elements",
                 "errors above max_relative_error", "allow larger errors");
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

// Units share memory for codes. A later unit that is larger makes it move, and gathers on two
// streams follow each other there.
TEST_F(DeviceCodec, UnitsShareTheRoomForCodes) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    CudaStream* const other = on.gpu.stream();
    std::vector<std::unique_ptr<TwinUnits>> units;
    for (uint64_t u = 0; u < 3; u++) {
      UnitCase c = simple_unit({{40 * static_cast<int64_t>(u + 1), 100}, {7}}, u + 1);
      c.gather_codec = codec_of(FSCCL_CODEC_MXFP8);
      units.push_back(std::make_unique<TwinUnits>(c, self, on.host.get(), on.pool.get(), on.gpu,
                                                  u == 1 ? other : on.stream));
      if (HasFailure()) return;
      units.back()->write_shards(u);
      for (const auto& unit : units) unit->unshard();
      for (const auto& unit : units) unit->compare_params();
      for (const auto& unit : units) unit->reshard();
    }
    const fsccl_codec_report_t small = report_of(units[0]->get()),
                               large = report_of(units[2]->get());
    EXPECT_LT(small.state_bytes, large.state_bytes);
    EXPECT_LT(large.state_bytes, 2 * small.state_bytes) << "most of it is shared";
    units.erase(units.begin());
    for (const auto& unit : units) unit->unshard();
    for (const auto& unit : units) unit->compare_params();
    for (const auto& unit : units) unit->reshard();
  });
}

// A host sends a part plain of which too much would go exactly. A GPU has no room for it, because
// nothing waits for the stream. All ranks learn it with the first call after the gather, and have
// NaN until then.
TEST_F(DeviceCodec, TooManyElementsForTheRoomAreNamedOnEveryRank) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = simple_unit({{100, 257}});
    c.gather_codec = codec_of(FSCCL_CODEC_INT8);
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    fsccl_view_t shard{};
    ASSERT_OK(fsccl_unit_shard(unit, 0, &shard));
    const std::vector<float> values(shard.count, self.rank == 1 ? NAN : 1.0f);
    on.gpu.copy(shard.data, values.data(), values.size() * sizeof(float), on.stream);
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    on.gpu.synchronize(on.stream);
    fsccl_view_t view{};
    EXPECT_ERROR(fsccl_unit_param(unit, 0, &view), FSCCL_ERR_PROTOCOL, "rank 1's elements",
                 "leave the codec out");
    EXPECT_ERROR(fsccl_unit_reduce_grads(unit, nullptr, on.stream, nullptr), FSCCL_ERR_PROTOCOL);
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

TEST_F(DeviceCodec, WhatDoesNotFitThePoolIsNamedOnEveryRank) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = on.gpu.ordinal();
    config.limit_bytes = 16u << 20;
    fsccl_pool_t pool = nullptr;
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
    UnitCase c = simple_unit({{4096, 4096}});
    c.gather_codec = codec_of(FSCCL_CODEC_INT8);
    fsccl_unit_t unit = nullptr;
    EXPECT_ERROR(make_unit(c, self.comm, pool, &unit), FSCCL_ERR_OUT_OF_MEMORY);
    EXPECT_OK(fsccl_pool_destroy(pool));
  });
}

// Streams that wait for a rank that does not come are let go, and the unit ends.
TEST_F(DeviceCodec, AGatherOfOneRankAloneEndsAtTheDeadline) {
  const auto alone = [](Rank& self, OnGpu& on) {
    fsccl_unit_t unit = nullptr;
    ASSERT_OK(make_unit(case_of(FSCCL_CODEC_INT8), self.comm, on.pool.get(), &unit));
    ASSERT_OK(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr));
    ASSERT_OK(fsccl_unit_reshard(unit, on.stream));
    if (self.rank == 0) (void)fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, on.stream, nullptr);
    fsccl_status_t state = FSCCL_OK;
    while (state == FSCCL_OK) {
      ASSERT_OK(fsccl_comm_async_error(self.comm, &state));
      std::this_thread::yield();
    }
    EXPECT_EQ(state, FSCCL_ERR_TIMEOUT);
    on.gpu.synchronize(on.stream);
    EXPECT_OK(fsccl_unit_destroy(unit));
  };
  run_on_gpus(2, alone, {.timeout_ms = 3000});
}

// ---- reductions

UnitCase sums_of(fsccl_codec_kind_t kind, uint32_t flags = 0, uint32_t block = 0) {
  UnitCase c = simple_unit({{30, 33}, {33}, {}, {3, 2, 4}, {64, 65}});
  c.reduce_codec = codec_of(kind, block);
  c.reduce_codec.flags = flags;
  c.reduce_codec.scope = FSCCL_CODEC_EVERYWHERE;
  return c;
}

// Reduces the gradients of both units in some steps and compares the bits, and what the codecs
// report.
void reduces_alike(const UnitCase& c, OnGpu& on, const Rank& self) {
  TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
  if (::testing::Test::HasFailure()) return;
  for (uint64_t step = 1; step <= 3; step++) {
    fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
    config.accumulate = step == 3;
    config.scale = step == 2 ? 0.37 : 1;
    twins.reduce(config, step == 2, step);
    twins.compare_grads();
    if (::testing::Test::HasFailure()) return;
  }
  const fsccl_codec_report_t host = report_of(twins.host()), device = report_of(twins.get());
  EXPECT_STREQ(device.reduce_codec, host.reduce_codec);
  EXPECT_EQ(device.gather_codec, nullptr);
  EXPECT_EQ(device.reductions, host.reductions);
  EXPECT_EQ(device.reduce_plain_bytes, host.reduce_plain_bytes);
  EXPECT_EQ(device.reduce_sent_bytes, host.reduce_sent_bytes);
  EXPECT_GT(device.reduce_state_bytes, 0u);
}

TEST_F(DeviceCodec, SumsOfEveryLayoutTypeAndKindAsOnTheHost) {
  for (const int ranks : {2, 3})
    run_on_gpus(ranks, [](Rank& self, OnGpu& on) {
      uint64_t seed = 1;
      for (const fsccl_layout_t layout :
           {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
        for (const fsccl_codec_kind_t kind :
             {FSCCL_CODEC_INT8, FSCCL_CODEC_INT4, FSCCL_CODEC_BF16}) {
          const bool sized = kind != FSCCL_CODEC_BF16;
          UnitCase c =
              sums_of(kind, seed % 2 ? FSCCL_CODEC_ERROR_FEEDBACK : 0, sized && seed % 3 ? 256 : 0);
          c.seed = seed++;
          c.layout = layout;
          c.reduce = seed % 3 == 0 ? FSCCL_FLOAT32 : seed % 3 == 1 ? FSCCL_FLOAT16 : FSCCL_BFLOAT16;
          if (layout == FSCCL_LAYOUT_RAGGED) c.params[0].block_rows = c.params[0].block_columns = 2;
          reduces_alike(c, on, self);
          if (HasFailure()) return;
        }
    });
}

TEST_F(DeviceCodec, SumsByParameterAndOfFrozenAndTiedOnes) {
  run_on_gpus(1, [](Rank& self, OnGpu& on) {
    reduces_alike(sums_of(FSCCL_CODEC_INT8, FSCCL_CODEC_ERROR_FEEDBACK), on, self);
  });
  run_on_gpus(3, [](Rank& self, OnGpu& on) {
    UnitCase c = sums_of(FSCCL_CODEC_INT8, FSCCL_CODEC_ERROR_FEEDBACK);
    c.by_parameter = true;
    // The norms of parameters are added, which has the host's bits because each rank's part of a
    // parameter is one block of the norm.
    reduces_alike(c, on, self);
  });
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = sums_of(FSCCL_CODEC_INT4, FSCCL_CODEC_ERROR_FEEDBACK);
    c.params[1].frozen = true;
    c.params.push_back(c.params[0]);
    c.params.back().tied_to = 0;
    reduces_alike(c, on, self);
  });
}

TEST_F(DeviceCodec, BothCodecsInOneUnit) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = sums_of(FSCCL_CODEC_INT8);
    c.gather_codec = codec_of(FSCCL_CODEC_FP8);
    c.gather_codec.scope = FSCCL_CODEC_EVERYWHERE;
    TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
    if (HasFailure()) return;
    for (uint64_t step = 1; step <= 2; step++) {
      twins.write_shards(step);
      mark_changed(twins);
      twins.unshard();
      twins.compare_params();
      twins.reshard();
      twins.reduce(FSCCL_REDUCE_CONFIG_INIT, false, step);
      twins.compare_grads();
    }
    EXPECT_EQ(report_of(twins.get()).gathers, 2u);
    EXPECT_EQ(report_of(twins.get()).reductions, 2u);
  });
}

// Returns the value of the one sample of a metric with all of these labels; ~0: there is none.
uint64_t metric(const std::string& name, const std::vector<std::string>& labels) {
  std::string text;
  EXPECT_OK(fsccl_metrics([](void* to, const char* some,
                             size_t bytes) { static_cast<std::string*>(to)->assign(some, bytes); },
                          &text));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    if (line.rfind(name + "{", 0) == 0 &&
        std::all_of(labels.begin(), labels.end(),
                    [&](const std::string& label) { return line.find(label) != line.npos; }))
      return std::strtoull(line.c_str() + line.find("} ") + 2, nullptr, 10);
  return ~uint64_t{0};
}

// Metrics add up what the units' codecs report, also of units that are gone.
TEST_F(DeviceCodec, MetricsCountBothCodecs) {
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = on.gpu.ordinal();
    const std::string name = "measured " + std::to_string(self.rank);
    config.name = name.c_str();
    fsccl_pool_t pool = nullptr;
    ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
    UnitCase c = sums_of(FSCCL_CODEC_INT8);
    c.gather_codec = codec_of(FSCCL_CODEC_FP8);
    c.gather_codec.audit_every = 2;
    std::array<std::unique_ptr<TwinUnits>, 2> units;
    for (auto& unit : units) {
      unit = std::make_unique<TwinUnits>(c, self, on.host.get(), pool, on.gpu, on.stream);
      if (HasFailure()) return;
      unit->write_shards(1);
      unit->unshard();
      unit->compare_params();
      unit->reshard();
      unit->reduce(FSCCL_REDUCE_CONFIG_INIT, false, 1);
      unit->compare_grads();
    }
    const fsccl_codec_report_t one = report_of(units[0]->get());
    EXPECT_GT(one.audited_blocks, 0u);
    for (const bool gone : {false, true}) {
      if (gone) units[0].reset();
      const auto told = [&](const std::string& family, const std::string& how = "pool") {
        return metric("fsccl_codec_" + family + "_total", {"pool=\"" + name + "\"", how});
      };
      EXPECT_EQ(told("parts", "how=\"coded\""), 2u);
      EXPECT_EQ(told("parts", "how=\"declined\""), 0u);
      EXPECT_EQ(told("sent_bytes"), 2 * one.sent_bytes);
      EXPECT_EQ(told("plain_bytes"), 2 * one.plain_bytes);
      EXPECT_EQ(told("blocks", "how=\"coded\""), 2 * one.blocks);
      EXPECT_EQ(told("blocks", "how=\"audited\""), 2 * one.audited_blocks);
      EXPECT_EQ(told("reduce_plain_bytes"), 2 * one.reduce_plain_bytes);
      EXPECT_EQ(told("reduce_sent_bytes"), 2 * one.reduce_sent_bytes);
    }
    units[1].reset();
    EXPECT_OK(fsccl_pool_destroy(pool));
  });
}

TEST_F(DeviceCodec, OnOneHostItDoesNothing) {
  if (hosts_given()) GTEST_SKIP() << "needs one host";
  run_on_gpus(2, [](Rank& self, OnGpu& on) {
    UnitCase c = case_of(FSCCL_CODEC_INT8);
    c.gather_codec.scope = FSCCL_CODEC_BETWEEN_HOSTS;
    TwinUnits twins(c, self, on.host.get(), on.pool.get(), on.gpu, on.stream);
    twins.write_shards(1);
    twins.unshard();
    twins.compare_params();
    twins.reshard();
    EXPECT_EQ(report_of(twins.get()).gathers, 0u);
    EXPECT_EQ(report_of(twins.get()).state_bytes, 0u);
  });
}

TEST_F(DeviceCodec, WhatGpusCannotDoIsRefused) {
  run_on_gpus(1, [](Rank& self, OnGpu& on) {
    UnitCase c = simple_unit({{8}});
    fsccl_unit_t unit = nullptr;
    const auto refused = [&](const char* first, const char* second) {
      EXPECT_ERROR(make_unit(c, self.comm, on.pool.get(), &unit), FSCCL_ERR_NOT_AVAILABLE, first,
                   second);
    };
    c.gather_codec = codec_of(FSCCL_CODEC_DELTA);
    refused("FSCCL_CODEC_DELTA", "use FSCCL_CODEC_INT8");
    c.gather_codec.kind = FSCCL_CODEC_CUSTOM;
    refused("FSCCL_CODEC_CUSTOM", "use FSCCL_CODEC_INT8");
    c.gather_codec = FSCCL_CODEC_INIT;
    c.reduce_codec = codec_of(FSCCL_CODEC_CUSTOM);
    refused("reduce_codec", "use FSCCL_CODEC_INT8, FSCCL_CODEC_INT4 or FSCCL_CODEC_BF16");
    c.reduce_codec = FSCCL_CODEC_INIT;
    ASSERT_OK(make_unit(c, self.comm, on.pool.get(), &unit));
    fsccl_codec_report_t report = FSCCL_CODEC_REPORT_INIT;
    EXPECT_ERROR(fsccl_unit_codec(unit, &report), FSCCL_ERR_INVALID_STATE,
                 "without a gather_codec");
    EXPECT_OK(fsccl_unit_destroy(unit));
  });
}

}  // namespace
}  // namespace fsccl::testing
