// Ranks as threads, each with a pool on a GPU.
#pragma once
#include "api/objects.h"
#include "comm/consensus.h"
#include "fsccl/insight.h"
#include "pool/device/device_pool.h"
#include "support.h"
#include "tests/unit/on_device.h"

namespace fsccl::testing {

inline std::string text_of(const Status& status) { return status.ok() ? "ok" : status.text(); }
#define EXPECT_GOOD(expression)                                 \
  do {                                                          \
    const auto& good_result = (expression);                     \
    EXPECT_TRUE(good_result.ok()) << ::fsccl::testing::text_of( \
        ::fsccl::testing::status_of(good_result));              \
  } while (0)
inline Status status_of(const Status& status) { return status.clone(); }
template <class T>
Status status_of(const Result<T>& result) {
  return result.status().clone();
}

struct PoolRank {
  Rank& self;
  Communicator& comm;
  DevicePool& pool;
  TestStream& stream;

  uint64_t take(uint64_t key, uint64_t bytes, const TestStream& on) const {
    Result<uint64_t> offset = pool.take(key, bytes, true, on);
    EXPECT_TRUE(offset.ok()) << text_of(offset.status());
    return offset.ok() ? offset.value() : 0;
  }
  uint64_t take(uint64_t key, uint64_t bytes) const { return take(key, bytes, stream); }
  void give(uint64_t key, const TestStream& on,
            std::vector<cuda::CUstreamBatchMemOpParams> waits = {}) const {
    const Status status = pool.give_back(key, on, std::move(waits));
    EXPECT_TRUE(status.ok()) << text_of(status);
  }
  void give(uint64_t key) const { give(key, stream); }
  cuda::CUdeviceptr slot(uint64_t offset, int rank) const { return pool.slots(rank) + offset; }
  cuda::CUdeviceptr slot(uint64_t offset) const { return slot(offset, self.rank); }
  fsccl_pool_stats_t stats() const {
    fsccl_pool_stats_t result = FSCCL_POOL_STATS_INIT;
    pool.stats(&result);
    return result;
  }
  void barrier() const { EXPECT_OK(fsccl_barrier(self.comm, nullptr, nullptr)); }
  // Expects that the value is the same on all ranks.
  void expect_alike(uint64_t value) const {
    const Result<int> odd = first_that_differs(comm, value);
    ASSERT_TRUE(odd.ok()) << odd.status().text();
    EXPECT_EQ(odd.value(), -1);
  }
};

using Configure = std::function<void(fsccl_pool_config_t&, int rank)>;

// Runs the pools on device 0, unless `configure` says otherwise.
inline void run_pools(int ranks, const std::function<void(const PoolRank&)>& body,
                      const Configure& configure = {}) {
  run_ranks(ranks, [&](Rank& self) {
    const Ref<Communicator> comm = live_comm(self.comm);
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.limit_bytes = 128u << 20;
    if (configure) configure(config, self.rank);
    Result<std::unique_ptr<DevicePool>> made = DevicePool::create(*comm, config);
    ASSERT_TRUE(made.ok()) << made.status().text();
    const std::unique_ptr<DevicePool> pool = made.take();
    TestStream stream(pool->device());
    body({self, *comm, *pool, stream});
  });
}

}  // namespace fsccl::testing
