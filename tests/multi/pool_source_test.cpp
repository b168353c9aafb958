// Tests pools over a source of the program's, in processes. Each process sees its own growth.
// Memory from outside, of which the first rank of the host has the file, carries the units of all
// ranks, also after that rank has left.
#include <fsccl/allocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

#include "conformance/outside_source.h"
#include "fsccl/insight.h"
#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::pool_source_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;
constexpr int64_t kCount = 300'000;
constexpr int kRanks = 4;  // a mean over them is exact

// Gathers a parameter and averages its gradient. Returns the number of wrong elements, or -1.
int64_t train(fsccl_comm_t comm, fsccl_pool_t pool) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = comm;
  config.pool = pool;
  config.wire_dtype = config.reduce_dtype = FSCCL_FLOAT32;
  fsccl_param_t weight = FSCCL_PARAM_INIT;
  weight.dims = 1, weight.shape[0] = kCount;
  fsccl_unit_t unit = nullptr;
  fsccl_view_t shard, whole, grad, mean;
  if (tell("unit", fsccl_unit_create(&config, &weight, 1, &unit)) ||
      tell("shard", fsccl_unit_shard(unit, 0, &shard)))
    return -1;
  for (uint64_t i = 0; i < shard.count; ++i)
    static_cast<float*>(shard.data)[i] = static_cast<float>(shard.offset + i);
  if (tell("unshard", fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr)) ||
      tell("param", fsccl_unit_param(unit, 0, &whole)) ||
      tell("grad", fsccl_unit_grad(unit, 0, nullptr, &grad)))
    return -1;
  int64_t wrong = 0;
  for (uint64_t i = 0; i < whole.count; ++i) {
    wrong += static_cast<float*>(whole.data)[i] != static_cast<float>(i);
    static_cast<float*>(grad.data)[i] = static_cast<float>(2 * i);
  }
  if (tell("reshard", fsccl_unit_reshard(unit, nullptr)) ||
      tell("reduce", fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr)) ||
      tell("mean", fsccl_unit_sharded_grad(unit, 0, &mean)))
    return -1;
  for (uint64_t i = 0; i < mean.count; ++i)
    wrong += static_cast<float*>(mean.data)[i] != static_cast<float>(2 * (mean.offset + i));
  return tell("unit", fsccl_unit_destroy(unit)) ? -1 : wrong;
}

int member(const Child& self, bool outside) {
  auto source = std::make_unique<outside_source_t>();
  fsccl_allocator_t below, limit, counting;
  outside_source_init(source.get(), size_t{1} << 40, 1, &below);
  if (!outside && tell("host", fsccl_allocator_host(&below))) return 2;
  if (tell("limit", fsccl_allocator_limit(&below, 12 << 20, &limit))) return 2;
  if (tell("statistics", fsccl_allocator_count(&limit, &counting))) return 2;
  fsccl_comm_t comm = nullptr;
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.limit_bytes = 64 << 20;
  config.source = &counting;
  fsccl_pool_t pool = nullptr;
  void *block = nullptr, *none = nullptr;
  if (tell("join", fsccl_comm_create(nullptr, &comm)) ||
      tell("pool", fsccl_pool_create(comm, &config, &pool)))
    return 3;
  const int64_t wrong = train(comm, pool);
  fsccl_pool_stats_t held = FSCCL_POOL_STATS_INIT;
  fsccl_allocator_stats_t seen = FSCCL_ALLOCATOR_STATS_INIT;
  if (tell("stats", fsccl_pool_stats(pool, &held)) ||
      tell("seen", fsccl_allocator_stats(&counting, &seen)))
    return 4;
  printf("wrong: %d, seen: %s, source asked: %d\n", static_cast<int>(wrong),
         seen.live_bytes && seen.live_bytes == held.reserved_bytes ? "all" : "not all",
         source->allocations);
  printf("beyond the limit: %d\n", fsccl_pool_alloc(pool, 13 << 20, nullptr, &none));
  if (tell("block", fsccl_pool_alloc(pool, 1 << 20, nullptr, &block))) return 5;
  std::memset(block, self.rank, 1 << 20);
  if (tell("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 6;
  if (self.rank == 0 && (tell("free", fsccl_pool_free(pool, block, nullptr)) ||
                         tell("pool", fsccl_pool_destroy(pool))))
    return 7;
  if (tell("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 8;
  if (self.rank != 0) {  // the source of rank 0 has closed its file
    for (int i = 0; i < 1 << 20; ++i)
      if (static_cast<char*>(block)[i] != self.rank) return 9;
    if (tell("free", fsccl_pool_free(pool, block, nullptr)) ||
        tell("pool", fsccl_pool_destroy(pool)))
      return 10;
  }
  if (tell("seen", fsccl_allocator_stats(&counting, &seen))) return 11;
  printf("left: %d, source has: %d\n", static_cast<int>(seen.live_bytes),
         static_cast<int>(source->out));
  return tell("comm", fsccl_comm_destroy(comm)) || wrong ? 12 : 0;
}

void run(const char* role, int port, bool outside) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++)
    processes.start(role, rank, kRanks, job(rank, kRanks, port));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < kRanks; rank++) {
    const std::string asked = outside && rank == 0 ? "1" : "0";
    EXPECT_THAT(processes.output(rank),
                ::testing::HasSubstr("wrong: 0, seen: all, source asked: " + asked))
        << processes.report();
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("beyond the limit: -20"))
        << processes.report();
    EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("left: 0, source has: 0"))
        << processes.report();
  }
}

TEST(PoolSource, EachProcessSeesItsGrowth) { run("on the system", 20420, false); }
TEST(PoolSource, ProcessesMapTheFileOfTheFirst) { run("outside", 20421, true); }

const AddRoles roles{{"on the system", [](const Child& self) { return member(self, false); }},
                     {"outside", [](const Child& self) { return member(self, true); }}};

}  // namespace
}  // namespace fsccl::testing::pool_source_tests
