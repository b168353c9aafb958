// Measures what a pool on a GPU costs the host and how many bytes it reserves, and does the same
// for the driver's own allocator (cudaMallocAsync):
//
//   pairs    a planned slot (a step has 32 of them) or a block is taken and given back, in several
//            sizes, on one stream and on two; a further figure is the driver's time for an event
//            that orders two streams
//   traces   training steps (pool_steps.h) that are repeated: the time of a pair, and the most
//            bytes reserved and the most bytes live
//
// If perf/pool/rmm/build.sh has built RMM's pool in the folder rmm/ of the build, it runs the
// traces, too, with its own code over addresses instead of a device. Nothing runs on the streams,
// so the figures are of the host alone.
//
//   pool_gpu [pairs]       one line of JSON for each measurement, and for each missing one; "SKIP:
//                          why" without a GPU
//   pool_gpu --steps       the traces, a line of JSON each, for other programs; needs no GPU
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/objects.h"
#include "fsccl/insight.h"
#include "perf/gpu/driver_pool.h"
#include "perf/gpu/pool_steps.h"
#include "perf/pool/rmm/peer.h"
#include "pool/device/device_pool.h"

namespace {

using namespace fsccl;

constexpr int kRepeats = 7, kWarmUp = 3;
constexpr uint64_t kMb = 1 << 20;

[[noreturn]] void stop(const std::string& why) {
  std::fprintf(stderr, "pool_gpu: %s\n", why.c_str());
  std::exit(1);
}
void need(const Status& status) {
  if (!status.ok()) stop(status.text());
}
template <class T>
T need(Result<T> result) {
  if (!result.ok()) stop(result.status().text());
  return result.take();
}

struct Bench {
  const cuda::Device& device;
  Communicator& comm;
  cuda::CUstream a, b;
  size_t pairs;
  perf::DriverPool driver_pool;
  perf::MemoryPoolHandle* others = nullptr;  // the driver's pool of the device, or null

  std::unique_ptr<DevicePool> pool() const {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = device.ordinal();
    return need(DevicePool::create(comm, config));
  }
  // Returns the nanoseconds of a pair, as the median of several runs of `in_run` pairs. The first
  // run warms up. The streams are idle when a run begins.
  template <class Run>
  double ns(size_t in_run, Run&& run) const {
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; i++) {
      const cuda::Current current(device);
      need(device.check("cuCtxSynchronize", device.driver().cuCtxSynchronize()));
      const auto begin = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double, std::nano> taken =
          std::chrono::steady_clock::now() - begin;
      if (i) times.push_back(taken.count() / static_cast<double>(in_run));
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
  }
  std::string common(const char* what) const {
    return fmt::format("{{\"bench\": \"pool_gpu\", \"what\": \"{}\", \"device\": \"{}\"", what,
                       device.name());
  }
};

void print(const Bench& bench, const char* what, uint64_t bytes, int streams, double ns,
           double driver_ns) {
  const std::string beside =
      driver_ns > 0 ? fmt::format("{:.1f}, \"ratio\": {:.4f}", driver_ns, ns / driver_ns) : "null";
  std::printf("%s, \"bytes\": %llu, \"streams\": %d, \"ns\": %.1f, \"cuMemAllocAsync_ns\": %s}\n",
              bench.common(what).c_str(), static_cast<unsigned long long>(bytes), streams, ns,
              beside.c_str());
}

// Returns the driver's time for a pair, or 0 if the device has no pool of the driver.
double driver_ns(const Bench& bench, uint64_t bytes, cuda::CUstream free_on) {
  if (!bench.others) return 0;
  return bench.ns(bench.pairs, [&] {
    for (size_t i = 0; i < bench.pairs; i++) {
      cuda::CUdeviceptr pointer = 0;
      need(bench.device.check("cuMemAllocAsync",
                              bench.driver_pool.allocate(&pointer, bytes, bench.a)));
      need(bench.device.check("cuMemFreeAsync", bench.driver_pool.free(pointer, free_on)));
    }
  });
}

// The slots of a step follow each other, as those of the layers of a model without prefetching.
constexpr uint64_t kLayers = 32;

// Returns the time for an event that one stream records and another waits for, which is the least
// that the driver needs to order two streams.
double event_ns(const Bench& bench) {
  const cuda::Current current(bench.device);
  const cuda::Driver& driver = bench.device.driver();
  cuda::CUevent event = nullptr;
  need(bench.device.check("cuEventCreate",
                          driver.cuEventCreate(&event, cuda::CU_EVENT_DISABLE_TIMING)));
  const double ns = bench.ns(bench.pairs, [&] {
    for (size_t i = 0; i < bench.pairs; i++) {
      need(bench.device.check("cuEventRecord", driver.cuEventRecord(event, bench.b)));
      need(bench.device.check("cuStreamWaitEvent", driver.cuStreamWaitEvent(bench.a, event, 0)));
    }
  });
  need(bench.device.check("cuEventDestroy", driver.cuEventDestroy(event)));
  return ns;
}

// Measures a slot and a block that are taken on one stream and given back on the same stream or on
// another one, as the computation gives back the slot of a gather.
void measure(const Bench& bench, uint64_t bytes, bool two) {
  const cuda::CUstream back = two ? bench.b : bench.a;
  const double beside = driver_ns(bench, bytes, back);
  {
    const std::unique_ptr<DevicePool> pool = bench.pool();
    std::vector<StepEvent> step;
    for (uint64_t key = 1; key <= kLayers; key++) {
      step.push_back({.stable = true, .key = key, .bytes = bytes});
      step.push_back({.op = StepOp::kGiveBack, .key = key});
    }
    need(pool->declare(step));
    const size_t steps = bench.pairs / kLayers + 1;
    const double ns = bench.ns(steps * kLayers, [&] {
      for (size_t i = 0; i < steps; i++) {
        for (uint64_t key = 1; key <= kLayers; key++) {
          (void)need(pool->take(key, bytes, true, bench.a));
          need(pool->give_back(key, back, {}));
        }
        need(pool->end_step());
      }
    });
    print(bench, "planned slot", bytes, 1 + two, ns, beside);
  }
  const std::unique_ptr<DevicePool> pool = bench.pool();
  const double ns = bench.ns(bench.pairs, [&] {
    for (size_t i = 0; i < bench.pairs; i++)
      need(pool->free(need(pool->alloc(bytes, bench.a, 1)), back));
  });
  print(bench, "block", bytes, 1 + two, ns, beside);
}

void print(const Bench& bench, const perf::PoolStep& step, const char* allocator, double ns,
           uint64_t peak) {
  std::printf(
      "%s, \"trace\": \"%s\", \"allocator\": \"%s\", \"ns\": %.1f, \"peak_reserved_bytes\": %llu, "
      "\"bound_bytes\": %llu, "
      "\"ratio\": %.4f}\n",
      bench.common("trace").c_str(), step.name.c_str(), allocator, ns,
      static_cast<unsigned long long>(peak), static_cast<unsigned long long>(step.bound_bytes),
      static_cast<double>(peak) / static_cast<double>(step.bound_bytes));
}

// Runs a trace on our pool. The step is declared, which is what a program with equal steps does.
void replay_ours(const Bench& bench, const perf::PoolStep& step) {
  const std::unique_ptr<DevicePool> pool = bench.pool();
  for (uint64_t key = 0; key < step.keys; key++)  // as units do, since the pool counts by name
    pool->name_slot(key, UseKind::kParameters, fmt::format("slot {}", key));
  need(pool->declare(step.events));
  const auto run = [&](auto&& look) {
    for (const StepEvent& event : step.events) {
      if (event.takes())
        (void)need(pool->take(event.key, event.bytes, event.stable, bench.a));
      else
        need(pool->give_back(event.key, bench.a, {}));
      look();
    }
    need(pool->end_step());
  };
  uint64_t peak = 0;
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  const auto look = [&] { pool->stats(&stats), peak = std::max(peak, stats.reserved_bytes); };
  for (int i = 0; i < kWarmUp; i++) run(look);
  const double ns = bench.ns(step.pairs, [&] { run([] {}); });
  look();
  if (stats.plan_misses) stop(step.name + ": the pool did not know the step that was declared");
  print(bench, step, "fsccl", ns, peak);
}

// Runs a trace on an allocator that has these two calls.
template <class Block, class Take, class Give>
double replay(const Bench& bench, const perf::PoolStep& step, Take&& take, Give&& give) {
  std::vector<Block> blocks(step.keys);
  std::vector<uint64_t> bytes(step.keys);
  const auto run = [&] {
    for (const StepEvent& event : step.events) {
      if (event.takes())
        blocks[event.key] = take(bytes[event.key] = event.bytes);
      else
        give(blocks[event.key], bytes[event.key]);
    }
  };
  for (int i = 0; i < kWarmUp; i++) run();
  return bench.ns(step.pairs, run);
}

void replay_driver(const Bench& bench, const perf::PoolStep& step) {
  const perf::DriverPool& calls = bench.driver_pool;
  const cuda::Current current(bench.device);
  uint64_t most = 0;
  need(bench.device.check("cuCtxSynchronize", bench.device.driver().cuCtxSynchronize()));
  need(bench.device.check("cuMemPoolTrimTo", calls.trim(bench.others, 0)));
  need(bench.device.check("cuMemPoolSetAttribute",
                          calls.set(bench.others, perf::kMostReserved, &most)));
  const auto take = [&](uint64_t bytes) {
    cuda::CUdeviceptr pointer = 0;
    need(bench.device.check("cuMemAllocAsync", calls.allocate(&pointer, bytes, bench.a)));
    return pointer;
  };
  const auto give = [&](cuda::CUdeviceptr pointer, uint64_t) {
    need(bench.device.check("cuMemFreeAsync", calls.free(pointer, bench.a)));
  };
  const double ns = replay<cuda::CUdeviceptr>(bench, step, take, give);
  need(bench.device.check("cuMemPoolGetAttribute",
                          calls.get(bench.others, perf::kMostReserved, &most)));
  print(bench, step, "cudaMallocAsync", ns, most);
}

void replay_rmm(const Bench& bench, const perf::PoolStep& step, const rmm_peer& rmm) {
  rmm.open();
  const auto take = [&](uint64_t bytes) {
    void* const block = rmm.take(bytes, 0);
    if (!block) stop("RMM's pool refuses a block");
    return block;
  };
  const double ns = replay<void*>(
      bench, step, take, [&](void* block, uint64_t bytes) { rmm.give_back(block, bytes, 0); });
  print(bench, step, "rmm", ns, rmm.reserved());
}

void print_missing(const char* what, const std::string& why) {
  std::printf("{\"missing\": \"%s\", \"why\": \"%s\"}\n", what, why.c_str());
}

// Opens the driver's pool and makes it keep what is freed, as PyTorch and RMM do. Otherwise it
// gives all free memory back to the system whenever a thread waits for a stream.
void open_driver_pool(Bench* bench) {
  perf::DriverPool& calls = bench->driver_pool;
  if (const char* const lacks = calls.find())
    return print_missing("cudaMallocAsync", std::string("the driver has no ") + lacks);
  int device = 0;
  need(bench->device.check("cuDeviceGet",
                           bench->device.driver().cuDeviceGet(&device, bench->device.ordinal())));
  const cuda::CUresult code = calls.default_pool(&bench->others, device);
  if (code != cuda::CUDA_SUCCESS)
    return print_missing("cudaMallocAsync",
                         bench->device.check("cuDeviceGetDefaultMemPool", code).text());
  uint64_t all = UINT64_MAX;
  need(bench->device.check("cuMemPoolSetAttribute",
                           calls.set(bench->others, perf::kReleaseThreshold, &all)));
}

// Opens RMM's pool if it has been built in the folder of the build to which this program belongs.
const rmm_peer* open_rmm(const char* program) {
  const auto build = std::filesystem::absolute(program).parent_path().parent_path().parent_path();
  const std::string file = build / "rmm/librmm_peer.so";
  const rmm_peer* (*peer)() = nullptr;
  LoadedLibrary(file.c_str()).find(peer, "fsccl_perf_rmm_peer");
  if (!peer)
    print_missing("rmm",
                  "the build has no rmm/librmm_peer.so: perf/pool/rmm/build.sh BUILD/rmm makes it");
  return peer ? peer() : nullptr;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view given = argc > 1 ? argv[1] : "20000";
  const std::vector<perf::PoolStep> steps = perf::pool_steps();
  if (given == "--steps") {
    for (const perf::PoolStep& step : steps) std::printf("%s\n", step.json().c_str());
    return 0;
  }
  // Each line is written at once, so that a user who ends the program early has the lines until
  // then.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  size_t pairs = 0;
  if (std::from_chars(given.data(), given.data() + given.size(), pairs).ec != std::errc() || !pairs)
    stop("how many pairs? a number above 0");
  std::string why;
  if (!cuda::device_count(&why)) {
    std::printf("SKIP: %s\n", why.c_str());
    return 0;
  }
  const cuda::Device& device = *need(cuda::Device::open(0));
  fsccl_unique_id_t id;
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  fsccl_comm_t comm = nullptr;
  if (fsccl_unique_id_create(&id) != FSCCL_OK || fsccl_comm_create(&config, &comm) != FSCCL_OK)
    stop("no communicator");
  Bench bench{.device = device,
              .comm = *live_comm(comm),
              .a = nullptr,
              .b = nullptr,
              .pairs = pairs,
              .driver_pool = {}};
  {
    const cuda::Current current(device);
    for (cuda::CUstream* stream : {&bench.a, &bench.b})
      need(device.check("cuStreamCreate", device.driver().cuStreamCreateWithPriority(
                                              stream, cuda::CU_STREAM_NON_BLOCKING, 0)));
  }
  open_driver_pool(&bench);
  const rmm_peer* const rmm = open_rmm(argv[0]);
  for (const perf::PoolStep& step : steps) {
    replay_ours(bench, step);
    if (bench.others) replay_driver(bench, step);
    if (rmm) replay_rmm(bench, step, *rmm);
  }
  std::printf("%s, \"ns\": %.1f}\n", bench.common("event").c_str(), event_ns(bench));
  for (const uint64_t bytes : {64 * (kMb >> 10), 16 * kMb, 256 * kMb})
    for (const bool two : {false, true}) measure(bench, bytes, two);
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 1;
}
