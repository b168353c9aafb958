// HSDP between processes: two groups of two, whose reduced gradients and shards lie in the pool or
// in memory of each process's own.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::replicas_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;
constexpr size_t kElements = 90'000, kParams = 2;

struct Mesh {
  int rank = 0;
  fsccl_comm_t world = nullptr, shard = nullptr, replicas = nullptr;
  fsccl_pool_t pool = nullptr;
  fsccl_unit_t unit = nullptr;
  std::vector<float> own_grad = std::vector<float>(kElements);

  bool make() {
    fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
    if (!good("join", fsccl_comm_create(nullptr, &world)) ||
        !good("rank", fsccl_comm_rank(world, &rank)))
      return false;
    if (!good("shard", fsccl_comm_split(world, rank / 2, rank, nullptr, &shard)) ||
        !good("replicas", fsccl_comm_split(world, rank % 2, rank, nullptr, &replicas)) ||
        !good("pool", fsccl_pool_create(world, &memory, &pool)))
      return false;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = shard, config.replicate_comm = replicas, config.pool = pool;
    config.reduce_dtype = FSCCL_FLOAT32;
    std::array<fsccl_param_t, kParams> params;
    params.fill(FSCCL_PARAM_INIT);
    for (fsccl_param_t& param : params) param.dims = 1, param.shape[0] = kElements;
    params[1].sharded_grad = own_grad.data();
    return good("unit", fsccl_unit_create(&config, params.data(), params.size(), &unit));
  }
  bool end() const {
    return good("unit", fsccl_unit_destroy(unit)) && good("pool", fsccl_pool_destroy(pool)) &&
           good("shard", fsccl_comm_destroy(shard)) &&
           good("replicas", fsccl_comm_destroy(replicas)) &&
           good("world", fsccl_comm_destroy(world));
  }
};

// Returns element k of rank r's gradient in a step, which is exact, as is every sum of them.
float gradient(uint64_t k, int rank, int step) {
  return static_cast<float>(k % 1000) * 8 + static_cast<float>(rank * 2 + step);
}

bool reduce_once(Mesh& mesh, int step) {
  fsccl_view_t view;
  for (size_t i = 0; i < kParams; i++) {
    if (!good("grad", fsccl_unit_grad(mesh.unit, i, nullptr, &view))) return false;
    for (uint64_t k = 0; k < view.count; k++)
      static_cast<float*>(view.data)[k] = gradient(k, mesh.rank, step);
  }
  fsccl_reduce_result_t result;
  fsccl_reduce_config_t config = FSCCL_REDUCE_CONFIG_INIT;
  config.scale = 1;
  config.result = &result;
  fsccl_work_t work = nullptr;
  if (!good("reduce", fsccl_unit_reduce_grads(mesh.unit, &config, nullptr, &work)) ||
      !good("wait", fsccl_work_wait(work, -1)))
    return false;
  double squares = 0;
  for (size_t i = 0; i < kParams; i++) {
    if (!good("sharded_grad", fsccl_unit_sharded_grad(mesh.unit, i, &view)) || view.count == 0)
      return false;
    for (uint64_t k = 0; k < view.count; k++) {
      float wanted = 0;
      for (int rank = 0; rank < 4; rank++) wanted += gradient(view.offset + k, rank, step);
      if (static_cast<float*>(view.data)[k] != wanted) {
        printf("step %d parameter %zu element %llu is wrong\n", step, i,
               static_cast<unsigned long long>(view.offset + k));
        return false;
      }
      squares += static_cast<double>(wanted) * wanted;
    }
  }
  return result.finite && result.norm_squared == squares;
}

int train(const Child&) {
  Mesh mesh;
  if (!mesh.make()) return 3;
  fsccl_view_t view;
  for (int step = 0; step < 20; step++)
    if (!reduce_once(mesh, step)) return 4;
  if (!good("equal", fsccl_unit_verify_replicas(mesh.unit))) return 5;
  if (!good("shard", fsccl_unit_shard(mesh.unit, 1, &view))) return 6;
  if (mesh.rank == 3) static_cast<float*>(view.data)[view.count - 1] = 1;
  if (fsccl_unit_verify_replicas(mesh.unit) != FSCCL_ERR_MISMATCH) return 7;
  if (!good("sync", fsccl_unit_broadcast_state(mesh.unit, 1, nullptr, nullptr))) return 8;
  if (!good("equal again", fsccl_unit_verify_replicas(mesh.unit))) return 9;
  if (mesh.rank % 2 == 1 && static_cast<float*>(view.data)[view.count - 1] != 1) return 10;
  return mesh.end() ? 0 : 11;
}

TEST(Replicas, TwoGroupsOfTwoProcesses) {
  for (const char* single_copy : {"auto", "off"}) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++)
      processes.start("train", rank, 4,
                      job(rank, 4, std::string(single_copy) == "off" ? 20101 : 20102, single_copy));
    EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
    for (int rank = 0; rank < 4; rank++)
      EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  }
}

const AddRoles roles{{"train", train}};

}  // namespace
}  // namespace fsccl::testing::replicas_tests
