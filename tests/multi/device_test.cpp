// Tests units on GPUs between processes, over the stand-in for CUDA's driver: what happens to the
// others when a rank dies, is stopped, or runs another program. In every case their streams end,
// and the next call says which rank it was and why.
#include <dlfcn.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>

#include "conformance/gpu.h"
#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::device_tests {
namespace {

const int64_t kPatienceMs = limit_ms(40'000);
constexpr int64_t kElements = 4096;
constexpr int kNoKernels = 77;

#define CHECK_GOOD(call) \
  if (!good(#call, call)) return 1

// A communicator, a pool on GPU rank % GPUs, and units of one parameter each.
struct World {
  fsccl_comm_t comm = nullptr;
  fsccl_pool_t pool = nullptr;
  std::vector<fsccl_unit_t> units;
  std::unique_ptr<Gpu> gpu;
  CudaStream* stream = nullptr;
};

int begin_on(fsccl_comm_t comm, const Child& child, size_t units, World* world) {
  world->comm = comm;
  world->gpu = std::make_unique<Gpu>(child.rank % Gpu::count());
  world->stream = world->gpu->stream();
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.memory = FSCCL_MEMORY_CUDA;
  config.device = world->gpu->ordinal();
  config.limit_bytes = 64u << 20;
  CHECK_GOOD(fsccl_pool_create(world->comm, &config, &world->pool));
  for (size_t u = 0; u < units; u++) {
    const std::string name = "layer " + std::to_string(u);
    fsccl_unit_config_t unit = FSCCL_UNIT_CONFIG_INIT;
    unit.name = name.c_str();
    unit.shard_comm = world->comm;
    unit.pool = world->pool;
    unit.wire_dtype = FSCCL_FLOAT32;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.dims = 1;
    param.shape[0] = kElements;
    const fsccl_status_t made = fsccl_unit_create(&unit, &param, 1, &world->units.emplace_back());
    if (made == FSCCL_ERR_NOT_AVAILABLE) std::exit(kNoKernels);
    CHECK_GOOD(made);
    // This call makes the pool grow.
    CHECK_GOOD(fsccl_unit_unshard(world->units.back(), FSCCL_UNSHARD_READ, world->stream, nullptr));
    CHECK_GOOD(fsccl_unit_reshard(world->units.back(), world->stream));
  }
  world->gpu->synchronize(world->stream);
  return 0;
}

// Makes the communicator from the environment, and the objects on it.
int begin(const Child& child, size_t units, World* world) {
  fsccl_comm_t comm = nullptr;
  CHECK_GOOD(fsccl_comm_create(nullptr, &comm));
  if (begin_on(comm, child, units, world)) return 1;
  std::puts("ready");
  return 0;
}

int end(const World& world) {
  for (fsccl_unit_t unit : world.units) CHECK_GOOD(fsccl_unit_destroy(unit));
  CHECK_GOOD(fsccl_pool_destroy(world.pool));
  CHECK_GOOD(fsccl_comm_destroy(world.comm));
  return 0;
}

// A rank whose peers fail: it gathers, sees its stream end, and prints the status of the next call.
int survive(const Child& child) {
  World world;
  if (begin(child, 1, &world)) return 1;
  CHECK_GOOD(fsccl_unit_unshard(world.units[0], FSCCL_UNSHARD_READ, world.stream, nullptr));
  std::puts("enqueued");
  world.gpu->synchronize(world.stream);
  std::puts("drained");
  (void)fsccl_unit_reshard(world.units[0], world.stream);
  const fsccl_status_t status =
      fsccl_unit_unshard(world.units[0], FSCCL_UNSHARD_READ, world.stream, nullptr);
  const fsccl_error_info_t info = last_error();
  std::printf("says %s peer %d: %s\n", fsccl_status_string(status), info.peer, info.text);
  return end(world);
}

[[noreturn]] void sleep_for_ever(void*) {
  for (;;) pause();
}

// Never carries out its part of a gather, because its stream waits for ever before it. To the other
// ranks it looks stuck in the gather.
int stuck(const Child& child) {
  World world;
  if (begin(child, 1, &world)) return 1;
  world.gpu->call(world.stream, sleep_for_ever, nullptr);
  CHECK_GOOD(fsccl_unit_unshard(world.units[0], FSCCL_UNSHARD_READ, world.stream, nullptr));
  std::puts("enqueued");
  sleep_for_ever(nullptr);
  return 0;
}

int train(const Child& child) {
  World world;
  if (begin(child, 3, &world)) return 1;
  for (int step = 1; step <= 5; step++) {
    for (fsccl_unit_t unit : world.units) {
      fsccl_view_t shard{};
      CHECK_GOOD(fsccl_unit_shard(unit, 0, &shard));
      std::vector<float> values;
      for (uint64_t k = 0; k < shard.count; k++)
        values.push_back(static_cast<float>(step * 10000) + static_cast<float>(shard.offset + k));
      world.gpu->copy(shard.data, values.data(), values.size() * sizeof(float), world.stream);
    }
    for (fsccl_unit_t unit : world.units) {
      CHECK_GOOD(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, world.stream, nullptr));
      fsccl_view_t param{};
      CHECK_GOOD(fsccl_unit_param(unit, 0, &param));
      const std::vector<char> bytes =
          world.gpu->read(param.data, kElements * sizeof(float), world.stream);
      for (int64_t k = 0; k < kElements; k++) {
        float got = 0;
        std::memcpy(&got, bytes.data() + static_cast<size_t>(k) * sizeof got, sizeof got);
        if (got != static_cast<float>(step * 10000) + static_cast<float>(k))
          return std::printf("step %d element %ld is %f\n", step, static_cast<long>(k),
                             static_cast<double>(got)),
                 1;
      }
      CHECK_GOOD(fsccl_unit_reshard(unit, world.stream));
    }
  }
  return end(world);
}

// Sums over all ranks. Then rank 1 is killed, and the next sum over all ranks must fail. The
// survivors shrink the communicator, sum over it, and gather units on it.
int shrink(const Child& child) {
  World before, after;
  if (begin(child, 1, &before)) return 1;
  constexpr size_t kCount = 300'000;
  void* const words = before.gpu->memory(kCount * sizeof(float));
  const auto start = [&](fsccl_comm_t comm) {
    const std::vector<float> mine(kCount, static_cast<float>(child.rank + 1));
    before.gpu->copy(words, mine.data(), kCount * sizeof(float), before.stream);
    return fsccl_all_reduce(words, words, kCount, FSCCL_FLOAT32, FSCCL_SUM, comm, before.stream,
                            nullptr);
  };
  const auto sum_is = [&](float wanted) {
    const std::vector<char> bytes = before.gpu->read(words, kCount * sizeof(float), before.stream);
    const std::vector<float> all(kCount, wanted);
    return std::memcmp(bytes.data(), all.data(), bytes.size()) == 0;
  };
  CHECK_GOOD(start(before.comm));
  if (!sum_is(6)) return std::puts("the sum over all is not right"), 1;
  if (child.rank == 1) {
    std::puts("enqueued");
    sleep_for_ever(nullptr);
  }
  std::puts("enqueued");
  fsccl_status_t status = start(before.comm);  // with NCCL the call does not wait for rank 1
  if (status == FSCCL_OK) {
    before.gpu->synchronize(before.stream);
    status = start(before.comm);
  }
  if (status != FSCCL_ERR_PEER_DEAD)
    return std::printf("nobody says that a rank died: %s\n", last_error().text), 1;
  fsccl_comm_t left = nullptr;
  CHECK_GOOD(fsccl_comm_shrink(before.comm, nullptr, &left));
  CHECK_GOOD(start(left));
  if (!sum_is(4)) return std::puts("the sum over who is left is not right"), 1;
  std::vector<char> text(1 << 16);
  CHECK_GOOD(fsccl_explain(left, "all_reduce", kCount, text.data(), text.size()));
  std::printf("those that are left: %s\n", text.data());
  if (begin_on(left, child, 2, &after)) return 1;
  return end(after) || end(before);
}

// Runs HSDP as clusters do: two hosts of two ranks, sharded over the ranks of a host and replicated
// between hosts.
int replicate(const Child& child) {
  World world;
  if (begin(child, 0, &world)) return 1;
  fsccl_comm_t shard = nullptr, replicas = nullptr;
  CHECK_GOOD(fsccl_comm_split(world.comm, child.rank / 2, child.rank, nullptr, &shard));
  CHECK_GOOD(fsccl_comm_split(world.comm, child.rank % 2, child.rank, nullptr, &replicas));
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  config.shard_comm = shard;
  config.replicate_comm = replicas;
  config.pool = world.pool;
  config.wire_dtype = config.reduce_dtype = FSCCL_FLOAT32;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 1;
  param.shape[0] = kElements;
  fsccl_unit_t unit = nullptr;
  CHECK_GOOD(fsccl_unit_create(&config, &param, 1, &unit));
  fsccl_view_t view{};
  const auto put = [&](float value) {
    const std::vector<float> values(view.count, value);
    world.gpu->copy(view.data, values.data(), values.size() * sizeof(float), world.stream);
    world.gpu->synchronize(world.stream);
  };
  const auto holds = [&](float value) {
    const std::vector<float> wanted(view.count, value);
    const std::vector<char> bytes =
        world.gpu->read(view.data, view.count * sizeof(float), world.stream);
    return std::memcmp(bytes.data(), wanted.data(), bytes.size()) == 0;
  };
  for (int step = 1; step <= 3; step++) {
    CHECK_GOOD(fsccl_unit_shard(unit, 0, &view));
    put(static_cast<float>(10 * step + child.rank));
    CHECK_GOOD(fsccl_unit_broadcast_state(unit, 1, world.stream, nullptr));
    CHECK_GOOD(fsccl_unit_verify_replicas(unit));
    CHECK_GOOD(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, world.stream, nullptr));
    CHECK_GOOD(fsccl_unit_param(unit, 0, &view));
    view.count /= 2;  // rank 2's part
    if (!holds(static_cast<float>(10 * step + 2)))
      return std::puts("the state of the other host is not here"), 1;
    CHECK_GOOD(fsccl_unit_reshard(unit, world.stream));
    CHECK_GOOD(fsccl_unit_grad(unit, 0, world.stream, &view));
    put(static_cast<float>(step * (child.rank + 1)));
    fsccl_reduce_result_t result{};
    fsccl_reduce_config_t reduce = FSCCL_REDUCE_CONFIG_INIT;
    reduce.scale = 1;
    reduce.result = &result;
    CHECK_GOOD(fsccl_unit_reduce_grads(unit, &reduce, world.stream, nullptr));
    CHECK_GOOD(fsccl_unit_sharded_grad(unit, 0, &view));
    const double sum = step * 10;
    if (!holds(static_cast<float>(sum)) ||
        result.norm_squared != sum * sum * static_cast<double>(view.count))
      return std::printf("a sum is not %g, or its norm: %g\n", sum, result.norm_squared), 1;
  }
  std::vector<char> text(1 << 16);
  CHECK_GOOD(fsccl_explain(replicas, "all_reduce", 1 << 20, text.data(), text.size()));
  std::printf("between hosts: %s\n", text.data());
  CHECK_GOOD(fsccl_unit_destroy(unit));
  CHECK_GOOD(fsccl_pool_destroy(world.pool));
  for (const fsccl_comm_t comm : {replicas, shard, world.comm})
    CHECK_GOOD(fsccl_comm_destroy(comm));
  return 0;
}

// Ranks 0 and 1 gather two units in different orders.
int disagree(const Child& child) {
  World world;
  if (begin(child, 2, &world)) return 1;
  for (size_t u = 0; u < 2; u++)
    (void)fsccl_unit_unshard(world.units[u ^ static_cast<size_t>(child.rank)], FSCCL_UNSHARD_READ,
                             world.stream, nullptr);
  world.gpu->synchronize(world.stream);
  fsccl_view_t view{};
  // The call that is checked is that of the rank that came first, because the other rank may have
  // been refused already.
  const fsccl_status_t status =
      fsccl_unit_param(world.units[static_cast<size_t>(child.rank)], 0, &view);
  std::printf("says %s: %s\n", fsccl_status_string(status), last_error().text);
  return 0;
}

// Gathers, and aborts the gather, which the other rank will never join.
int abort_it(const Child& child) {
  World world;
  if (begin(child, 1, &world)) return 1;
  if (child.rank == 0) {
    CHECK_GOOD(fsccl_unit_unshard(world.units[0], FSCCL_UNSHARD_READ, world.stream, nullptr));
    CHECK_GOOD(fsccl_comm_abort(world.comm));
    world.gpu->synchronize(world.stream);
  } else {
    fsccl_status_t state = FSCCL_OK;
    while (state == FSCCL_OK) {
      CHECK_GOOD(fsccl_comm_async_error(world.comm, &state));
      std::this_thread::yield();
    }
  }
  const fsccl_status_t status =
      child.rank == 0
          ? fsccl_unit_reshard(world.units[0], world.stream)
          : fsccl_unit_unshard(world.units[0], FSCCL_UNSHARD_READ, world.stream, nullptr);
  return status == FSCCL_ERR_ABORTED ? 0 : 1;
}

Variables on_gpus(int rank, int ranks, int port, const char* gpus,
                  const char* timeout_ms = nullptr) {
  Variables variables = job(rank, ranks, port);
  variables.emplace_back("FSCCL_STAND_IN_GPUS", gpus);
  for (auto& [name, value] : variables)
    if (timeout_ms && name == "FSCCL_TIMEOUT_MS") value = timeout_ms;
  return variables;
}

class DeviceProcesses : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!Gpu::there()) GTEST_SKIP() << "no GPU and no stand-in for CUDA's driver";
    Processes probe;
    probe.start("train_on_gpus", 0, 1, on_gpus(0, 1, 39410, "1"));
    probe.finish(kPatienceMs);
    if (probe.exit_code(0) == kNoKernels)
      GTEST_SKIP() << "the library was built without kernels for GPUs";
  }
};

TEST_P(DeviceProcesses, Train) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++)
    processes.start("train_on_gpus", rank, 3, on_gpus(rank, 3, 39411, GetParam()));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

// Ranks of different hosts do not reach each other's slots, so their units gather and reduce with
// the transport of collectives, which is the parameter of these tests.
class DeviceHosts : public DeviceProcesses {
 protected:
  void SetUp() override {
    DeviceProcesses::SetUp();
    if (IsSkipped()) return;
    Processes probe;
    Variables variables = on_gpus(0, 1, 39418, "1");
    variables.emplace_back("FSCCL_DEVICE_TRANSPORT", GetParam());
    probe.start("train_on_gpus", 0, 1, variables);
    probe.finish(kPatienceMs);
    if (probe.exit_code(0) == kNoKernels)
      GTEST_SKIP() << "nothing here moves collectives by " << GetParam();
  }
  void expect_transport(const Processes& processes, std::initializer_list<int> ranks) const {
    for (const int rank : ranks)
      EXPECT_NE(processes.output(rank).find(R"("transport":")" + std::string(GetParam())),
                std::string::npos)
          << processes.report();
  }
};

// Returns the variables of a rank on two hosts, with half of the ranks on each. NCCL takes them for
// two hosts as well, whatever GPUs they share. If `transport` is null, the library chooses.
Variables on_host_of(int rank, int ranks, int port, const char* gpus, const char* transport) {
  Variables variables = on_gpus(rank, ranks, port, gpus);
  const int here = ranks / 2;
  const Variables other = nccl_host("host " + std::to_string(rank / here));
  variables.insert(variables.end(), other.begin(), other.end());
  if (transport) variables.emplace_back("FSCCL_DEVICE_TRANSPORT", transport);
  variables.emplace_back("FSCCL_HOST_ID", "host " + std::to_string(rank / here));
  variables.emplace_back("FSCCL_INSECURE", "1");
  for (auto& [name, value] : variables) {
    if (name == "LOCAL_RANK") value = std::to_string(rank % here);
    if (name == "LOCAL_WORLD_SIZE") value = std::to_string(here);
  }
  return variables;
}

TEST_P(DeviceHosts, Train) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("train_on_gpus", rank, 2, on_host_of(rank, 2, 29415, "2", GetParam()));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

// For NCCL the test leaves the choice of a transport to the library: if it asked for NCCL by name,
// shard ranks that share a GPU would fail, because NCCL refuses two ranks on one GPU. The library
// lets them move bytes peer to peer.
TEST_P(DeviceHosts, ReplicasOnOtherHosts) {
  Processes processes;
  const bool by_nccl = std::string(GetParam()) == "nccl";
  for (int rank = 0; rank < 4; rank++)
    processes.start("replicate", rank, 4,
                    on_host_of(rank, 4, 29416, "4", by_nccl ? nullptr : GetParam()));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
  expect_transport(processes, {0, 1, 2, 3});
}

TEST_P(DeviceHosts, WhoIsLeftGoesOn) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++) {
    Variables variables = on_gpus(rank, 3, 29417, "4");
    const Variables alone = nccl_host("host " + std::to_string(rank));
    variables.insert(variables.end(), alone.begin(), alone.end());
    variables.emplace_back("FSCCL_DEVICE_TRANSPORT", GetParam());
    processes.start("shrink", rank, 3, variables);
  }
  for (int rank = 0; rank < 3; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "enqueued", kPatienceMs)) << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(kPatienceMs);
  for (const int rank : {0, 2}) EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  expect_transport(processes, {0, 2});
}

INSTANTIATE_TEST_SUITE_P(By, DeviceHosts, ::testing::Values("nccl", "ucx", "staged"),
                         [](const auto& by) { return std::string(by.param); });

// Without NCCL_HOSTID NCCL takes the two hosts for one host and refuses ranks that share a GPU, and
// UCX has no RDMA. So the bytes go through host memory.
TEST(DeviceReplicas, WhatNeitherNcclNorUcxTakesIsStaged) {
  if (!Gpu::there()) GTEST_SKIP() << "no GPU and no stand-in for CUDA's driver";
  Processes processes;
  for (int rank = 0; rank < 4; rank++) {
    Variables variables = on_host_of(rank, 4, 29419, "1", nullptr);
    for (auto& [name, value] : variables)
      if (name == "NCCL_HOSTID") value = "one host";
    variables.emplace_back("CUDA_VISIBLE_DEVICES", "0");
    processes.start("replicate", rank, 4, variables);
  }
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
  for (int rank = 0; rank < 4; rank++)
    EXPECT_NE(processes.output(rank).find(R"("transport":"staged")"), std::string::npos)
        << processes.report();
}

TEST_P(DeviceProcesses, ARankIsKilledInTheMiddleOfAGather) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++)
    processes.start(rank == 1 ? "stuck" : "survive", rank, 3, on_gpus(rank, 3, 39412, GetParam()));
  for (int rank = 0; rank < 3; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "enqueued", kPatienceMs)) << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(kPatienceMs);
  for (const int rank : {0, 2}) {
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
    EXPECT_NE(processes.output(rank).find("drained"), std::string::npos) << processes.report();
    EXPECT_NE(processes.output(rank).find("says FSCCL_ERR_PEER_DEAD"), std::string::npos)
        << processes.report();
    EXPECT_NE(processes.output(rank).find("peer 1: rank 1"), std::string::npos)
        << processes.report();
  }
}

TEST_P(DeviceProcesses, WhoIsStoppedPastTheDeadlineIsNamed) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start(rank == 1 ? "stuck" : "survive", rank, 2,
                    on_gpus(rank, 2, 39413, GetParam(), "8000"));
  for (int rank = 0; rank < 2; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "enqueued", kPatienceMs)) << processes.report();
  processes.kill(1, SIGSTOP);
  ASSERT_TRUE(processes.wait_for_output(0, "says", kPatienceMs)) << processes.report();
  EXPECT_NE(processes.output(0).find("says FSCCL_ERR_TIMEOUT"), std::string::npos)
      << processes.report();
  EXPECT_NE(processes.output(0).find("still waits for rank(s) 1"), std::string::npos)
      << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(kPatienceMs);
  EXPECT_EQ(processes.exit_code(0), 0) << processes.report();
}

TEST_P(DeviceProcesses, AnotherOrderIsFoundOut) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("disagree", rank, 2, on_gpus(rank, 2, 39414, GetParam()));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
  for (int rank = 0; rank < 2; rank++) {
    EXPECT_NE(processes.output(rank).find("says FSCCL_ERR_MISMATCH"), std::string::npos)
        << processes.report();
    EXPECT_NE(processes.output(rank).find("'layer 0'"), std::string::npos) << processes.report();
    EXPECT_NE(processes.output(rank).find("'layer 1'"), std::string::npos) << processes.report();
  }
}

TEST_P(DeviceProcesses, Abort) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start("abort", rank, 2, on_gpus(rank, 2, 39415, GetParam()));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

INSTANTIATE_TEST_SUITE_P(Gpus, DeviceProcesses, ::testing::Values("1", "2"),
                         [](const auto& gpus) { return std::string(gpus.param); });

const AddRoles roles{{"survive", survive},   {"stuck", stuck},    {"train_on_gpus", train},
                     {"disagree", disagree}, {"abort", abort_it}, {"replicate", replicate},
                     {"shrink", shrink}};

}  // namespace
}  // namespace fsccl::testing::device_tests
