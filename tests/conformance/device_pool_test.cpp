// Tests pools on a GPU through the public API: blocks on CUDA's streams, pools as an allocator and
// for PyTorch, sources, limits, reports, and refusals. Slots are tested with units
// (device_units_test.cpp; tests/unit/device).
#include <fsccl/allocator.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "cuda/pointer.h"
#include "fsccl/insight.h"
#include "support.h"
#include "tests/unit/on_device.h"

namespace fsccl::testing {
namespace {

constexpr uint64_t kMb = 1 << 20;

class DevicePoolApi : public OnDevice {
 protected:
  using Configure = std::function<void(fsccl_pool_config_t&)>;
  // Makes a pool of one rank on the last device, which is not the one that a thread begins with if
  // there are several.
  void with_pool(const std::function<void(Rank&)>& body, const Configure& configure = {}) {
    run_ranks(1, [&](Rank& self) {
      fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
      config.memory = FSCCL_MEMORY_CUDA;
      config.device = last_gpu();
      config.limit_bytes = 64 * kMb;
      if (configure) configure(config);
      ASSERT_OK(fsccl_pool_create(self.comm, &config, &pool));
      body(self);
      EXPECT_OK(fsccl_pool_destroy(pool));
    });
  }
  void* take(size_t bytes, const TestStream& on) const {
    void* pointer = nullptr;
    EXPECT_OK(fsccl_pool_alloc(pool, bytes, on.get(), &pointer));
    return pointer;
  }
  fsccl_pool_stats_t stats() const {
    fsccl_pool_stats_t result = FSCCL_POOL_STATS_INIT;
    EXPECT_OK(fsccl_pool_stats(pool, &result));
    return result;
  }
  static cuda::CUdeviceptr at(void* pointer) {
    return reinterpret_cast<cuda::CUdeviceptr>(pointer);
  }
  fsccl_pool_t pool = nullptr;
};

TEST_F(DevicePoolApi, BlocksAreDeviceMemoryAndFollowStreams) {
  with_pool([&](Rank&) {
    HostPage page(gpu(last_gpu()));
    TestStream a(gpu(last_gpu())), b(gpu(last_gpu()));
    void* const block = take(20 * kMb, a);
    int ordinal = -1;
    EXPECT_TRUE(cuda::on_device(block, &ordinal));
    EXPECT_EQ(ordinal, last_gpu());
    page.hold(a, 0);
    a.fill(at(block), 1, 20 * kMb);
    EXPECT_OK(fsccl_pool_free(pool, block, a.get()));
    EXPECT_EQ(take(20 * kMb, b), block);
    b.fill(at(block), 2, 20 * kMb);
    EXPECT_FALSE(b.idle());
    page.word(0) = 1;
    EXPECT_EQ(byte_at(at(block), b, page), 2);
    EXPECT_OK(fsccl_pool_free(pool, block, b.get()));
    EXPECT_OK(fsccl_pool_free(pool, nullptr, b.get()));
    EXPECT_EQ(stats().allocations, 2u);
    EXPECT_EQ(stats().frees, 2u);
    EXPECT_EQ(stats().local_peak_bytes, 20 * kMb);
    uint64_t released = 0;
    EXPECT_OK(fsccl_pool_trim(pool, &released));
    EXPECT_EQ(released, 20 * kMb);
    EXPECT_EQ(stats().reserved_bytes, 0u);
  });
}

TEST_F(DevicePoolApi, AsAnAllocatorItServesPyTorchOnItsStream) {
  with_pool([&](Rank&) {
    HostPage page(gpu(last_gpu()));
    TestStream a(gpu(last_gpu())), b(gpu(last_gpu()));
    fsccl_allocator_t table;
    ASSERT_OK(fsccl_pool_allocator(pool, &table));
    EXPECT_EQ(table.memory, FSCCL_MEMORY_CUDA);
    EXPECT_EQ(table.device, last_gpu());
    const std::string name = "device " + std::to_string(last_gpu());
    EXPECT_ERROR(fsccl_torch_use(last_gpu() + 1, &table), FSCCL_ERR_INVALID_ARGUMENT, name.c_str());
    ASSERT_OK(fsccl_torch_use(last_gpu(), &table));
    void* const block = fsccl_torch_malloc(20 * kMb, last_gpu(), a.get());
    ASSERT_NE(block, nullptr);
    page.hold(a, 0);
    a.fill(at(block), 1, 20 * kMb);
    fsccl_torch_free(block, 20 * kMb, last_gpu(), a.get());
    // Stream b is idle. If it had work to do, the call would wait for that.
    void* const next = fsccl_torch_malloc(20 * kMb, last_gpu(), b.get());
    EXPECT_EQ(next, block);
    b.fill(at(next), 2, 20 * kMb);
    EXPECT_FALSE(b.idle());
    page.word(0) = 1;
    EXPECT_EQ(byte_at(at(next), b, page), 2);
    EXPECT_ERROR(fsccl_pool_destroy(pool), FSCCL_ERR_INVALID_STATE, "1 block(s)", "20971520 bytes");
    fsccl_torch_free(next, 20 * kMb, last_gpu(), b.get());
    void* aligned = nullptr;
    EXPECT_OK(table.allocate(table.context, 100, 1 << 20, a.get(), &aligned));
    EXPECT_EQ(at(aligned) % (1 << 20), 0u);
    EXPECT_OK(table.deallocate(table.context, aligned, 100, a.get()));
    ASSERT_OK(fsccl_torch_use(last_gpu(), nullptr));
    EXPECT_OK(table.destroy(table.context));
  });
}

TEST_F(DevicePoolApi, GrowthPassesThroughAdaptorsOverTheDevicesSource) {
  fsccl_allocator_t device, limit, counting;
  ASSERT_OK(fsccl_allocator_cuda(last_gpu(), &device));
  ASSERT_OK(fsccl_allocator_limit(&device, 30 * kMb, &limit));
  ASSERT_OK(fsccl_allocator_count(&limit, &counting));
  with_pool(
      [&](Rank&) {
        TestStream a(gpu(last_gpu()));
        fsccl_allocator_stats_t seen = FSCCL_ALLOCATOR_STATS_INIT;
        void* const block = take(kMb, a);
        ASSERT_OK(fsccl_allocator_stats(&counting, &seen));
        EXPECT_EQ(seen.live_bytes, 20 * kMb);
        EXPECT_EQ(seen.live_bytes, stats().reserved_bytes);
        void* none = nullptr;
        EXPECT_ERROR(fsccl_pool_alloc(pool, 40 * kMb, a.get(), &none), FSCCL_ERR_OUT_OF_MEMORY,
                     "source");
        EXPECT_OK(fsccl_pool_free(pool, block, a.get()));
      },
      [&](fsccl_pool_config_t& config) { config.source = &counting; });
  fsccl_allocator_stats_t seen = FSCCL_ALLOCATOR_STATS_INIT;
  ASSERT_OK(fsccl_allocator_stats(&counting, &seen));
  EXPECT_EQ(seen.live_bytes, 0u);
  for (fsccl_allocator_t* table : {&counting, &limit, &device})
    EXPECT_OK(table->destroy(table->context));
}

TEST_F(DevicePoolApi, OtherSourcesAreRefused) {
  fsccl_allocator_t host, other;
  ASSERT_OK(fsccl_allocator_host(&host));
  ASSERT_OK(fsccl_allocator_cuda(0, &other));
  const std::string own = "fsccl_allocator_cuda(" + std::to_string(last_gpu()) + ")";
  run_ranks(1, [&](Rank& self) {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = last_gpu();
    for (const fsccl_allocator_t* source : {&host, &other}) {
      if (source == &other && last_gpu() == 0) continue;  // there is no other device
      config.source = source;
      EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_INVALID_ARGUMENT,
                   own.c_str());
    }
    config.source = nullptr;
    config.dry_run = 1;
    EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_NOT_AVAILABLE,
                 "host memory");
    config.dry_run = 0;
    config.device = 99;
    EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_NOT_AVAILABLE,
                 "device 99");
    config.memory = wild<fsccl_memory_t>(3);
    EXPECT_ERROR(fsccl_pool_create(self.comm, &config, &pool), FSCCL_ERR_INVALID_ARGUMENT, "3");
  });
  for (fsccl_allocator_t* table : {&host, &other}) EXPECT_OK(table->destroy(table->context));
}

TEST_F(DevicePoolApi, WhatIsForHostMemoryIsRefusedWithAWordWhatToDo) {
  with_pool([&](Rank& self) {
    alignas(4096) static char page[4096];
    EXPECT_ERROR(fsccl_pool_import(pool, page, sizeof page), FSCCL_ERR_NOT_AVAILABLE, "copy");
    void* none = nullptr;
    EXPECT_ERROR(fsccl_pool_alloc(pool, 1, reinterpret_cast<void*>(uintptr_t{2}), &none),
                 FSCCL_ERR_INVALID_ARGUMENT, "cudaStreamPerThread");
    EXPECT_ERROR(fsccl_comm_destroy(self.comm), FSCCL_ERR_INVALID_STATE, "pool");
    EXPECT_OK(fsccl_pool_step(pool));
    EXPECT_EQ(stats().steps, 1u);
  });
}

TEST_F(DevicePoolApi, TheProgramIsAskedBeforeItIsRefused) {
  struct Asked {
    void* block;
    void* stream;
    int times = 0;
  } asked{};
  with_pool(
      [&](Rank&) {
        TestStream a(gpu(last_gpu()));
        asked.stream = a.get();
        asked.block = take(50 * kMb, a);
        void* const large = take(60 * kMb, a);
        EXPECT_EQ(asked.times, 1);
        EXPECT_OK(fsccl_pool_free(pool, large, a.get()));
      },
      [&](fsccl_pool_config_t& config) {
        config.on_pressure_context = &asked;
        config.on_pressure = [](void* context, fsccl_pool_t from, uint64_t) -> uint64_t {
          Asked& self = *static_cast<Asked*>(context);
          self.times++;
          EXPECT_OK(fsccl_pool_free(from, std::exchange(self.block, nullptr), self.stream));
          return 50 * kMb;
        };
      });
}

TEST_F(DevicePoolApi, BeyondTheSoftLimitAStepGivesBack) {
  with_pool(
      [&](Rank&) {
        TestStream a(gpu(last_gpu()));
        void* const block = take(40 * kMb, a);
        EXPECT_OK(fsccl_pool_free(pool, block, a.get()));
        // The call looks how far the stream has got, and waits for nothing.
        EXPECT_OK(fsccl_pool_step(pool));
        a.finish();
        EXPECT_OK(fsccl_pool_step(pool));
        EXPECT_EQ(stats().reserved_bytes, 0u);
      },
      [](fsccl_pool_config_t& config) { config.soft_limit_bytes = 8 * kMb; });
}

TEST_F(DevicePoolApi, TellsWhatItHolds) {
  char directory[] = "/tmp/fsccl_device_pool_XXXXXX";
  ASSERT_NE(mkdtemp(directory), nullptr);
  const std::string log = std::string(directory) + "/log.csv",
                    snapshot = std::string(directory) + "/snapshot.json";
  {
    const Settings settings{{"FSCCL_POOL_LOG", log.c_str()}, {"FSCCL_POOL_HISTORY", "100"}};
    with_pool(
        [&](Rank&) {
          TestStream a(gpu(last_gpu()));
          void* const block = take(1000, a);
          int seen = 0;
          EXPECT_OK(fsccl_pool_owners(
              pool,
              [](void* context, const fsccl_pool_owner_t* use) {
                ++*static_cast<int*>(context);
                EXPECT_STREQ(use->kind, "block");
                EXPECT_EQ(use->live_bytes, 1024u);
              },
              &seen));
          EXPECT_EQ(seen, 1);
          EXPECT_OK(fsccl_pool_snapshot(pool, snapshot.c_str()));
          std::string metrics;
          EXPECT_OK(fsccl_metrics(
              [](void* context, const char* text, size_t bytes) {
                static_cast<std::string*>(context)->append(text, bytes);
              },
              &metrics));
          EXPECT_THAT(metrics, ::testing::HasSubstr("pool=\"on device\""));
          EXPECT_OK(fsccl_pool_free(pool, block, a.get()));
        },
        [](fsccl_pool_config_t& config) { config.name = "on device"; });
  }
  const auto contents = [](const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  EXPECT_THAT(contents(log), ::testing::HasSubstr("allocate"));
  EXPECT_THAT(contents(log), ::testing::HasSubstr("free"));
  EXPECT_THAT(contents(snapshot), ::testing::HasSubstr("on device"));
  EXPECT_THAT(contents(snapshot), ::testing::HasSubstr("20971520"));
  EXPECT_EQ(unlink(log.c_str()) | unlink(snapshot.c_str()) | rmdir(directory), 0);
}

}  // namespace
}  // namespace fsccl::testing
