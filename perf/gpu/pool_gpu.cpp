// What a pool on a GPU costs the host: to take and give back a planned slot, and a block, beside cuMemAllocAsync and cuMemFreeAsync
// of the same sizes in the same order; and how much a pool reserves for a declared schedule, beside the most that is live at once.
// Nothing runs on the streams, so what is measured is the host alone.
//
//   pool_gpu [pairs]       one line of JSON for each measurement; "SKIP: why" without a GPU
#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "api/objects.h"
#include "device/device_pool.h"

namespace {

using namespace fsccl;

constexpr int kRepeats = 7;
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
  cuda::Stream a, b;
  size_t pairs;

  std::unique_ptr<DevicePool> pool() const {
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.memory = FSCCL_MEMORY_CUDA;
    config.device = device.ordinal();
    return need(DevicePool::create(comm, config));
  }
  // Nanoseconds a pair: the median of some repeats, of which the first warms up. Streams are idle when each begins.
  template <class Run>
  double ns(Run&& run) const {
    std::vector<double> times;
    for (int i = 0; i <= kRepeats; i++) {
      const cuda::Current current(device);
      need(device.check("cuCtxSynchronize", device.driver().synchronize()));
      const auto begin = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
      if (i) times.push_back(taken.count() / static_cast<double>(pairs));
    }
    std::nth_element(times.begin(), times.begin() + kRepeats / 2, times.end());
    return times[kRepeats / 2];
  }
  std::string common(const char* what) const {
    return fmt::format("{{\"bench\": \"pool_gpu\", \"what\": \"{}\", \"device\": \"{}\"", what, device.name());
  }
};

void print(const Bench& bench, const char* what, uint64_t bytes, int streams, double ns, double driver_ns) {
  const std::string beside = driver_ns > 0 ? fmt::format("{:.1f}, \"ratio\": {:.4f}", driver_ns, ns / driver_ns) : "null";
  std::printf("%s, \"bytes\": %llu, \"streams\": %d, \"ns\": %.1f, \"cuMemAllocAsync_ns\": %s}\n", bench.common(what).c_str(),
              static_cast<unsigned long long>(bytes), streams, ns, beside.c_str());
}

// The driver's own allocator, which keeps what is freed until somebody waits for the device; 0: it has none.
double driver_ns(const Bench& bench, uint64_t bytes, cuda::Stream free_on) {
  const cuda::Driver& driver = bench.device.driver();
  if (!driver.allocate_async || !driver.free_async) return 0;
  return bench.ns([&] {
    for (size_t i = 0; i < bench.pairs; i++) {
      cuda::DevicePointer pointer = 0;
      need(bench.device.check("cuMemAllocAsync", driver.allocate_async(&pointer, bytes, bench.a)));
      need(bench.device.check("cuMemFreeAsync", driver.free_async(pointer, free_on)));
    }
  });
}

// Taken on one stream; given back on it, or on another one, as a gather's slot is by the computation.
void measure(const Bench& bench, uint64_t bytes, bool two) {
  const cuda::Stream back = two ? bench.b : bench.a;
  const double beside = driver_ns(bench, bytes, back);
  {
    const std::unique_ptr<DevicePool> pool = bench.pool();
    const std::vector<StepEvent> step{{.stable = true, .key = 1, .bytes = bytes}, {.op = StepOp::kGiveBack, .key = 1}};
    need(pool->declare(step));
    const double ns = bench.ns([&] {
      for (size_t i = 0; i < bench.pairs; i++) {
        (void)need(pool->take(1, bytes, true, bench.a));
        need(pool->give_back(1, back, {}));
        need(pool->end_step());
      }
    });
    print(bench, "planned slot", bytes, 1 + two, ns, beside);
  }
  const std::unique_ptr<DevicePool> pool = bench.pool();
  const double ns = bench.ns([&] {
    for (size_t i = 0; i < bench.pairs; i++) need(pool->free(need(pool->alloc(bytes, bench.a, 1)), back));
  });
  print(bench, "block", bytes, 1 + two, ns, beside);
}

// A model of equal layers between two larger units, forward and backward, one unit fetched ahead.
std::vector<StepEvent> training_step(uint64_t layers) {
  std::vector<StepEvent> events;
  const auto bytes = [&](uint64_t unit) { return (unit == 0 || unit == layers + 1 ? 200 : 85) * kMb; };
  const auto take = [&](uint64_t key, uint64_t unit) {
    events.push_back({.stable = key % 2 == 0, .key = key, .bytes = bytes(unit)});
  };
  const auto give = [&](uint64_t key) { events.push_back({.op = StepOp::kGiveBack, .key = key}); };
  const uint64_t units = layers + 2;
  take(0, 0);
  for (uint64_t unit = 0; unit < units; unit++) {
    if (unit + 1 < units) take(2 * (unit + 1), unit + 1);
    if (unit + 1 < units) give(2 * unit);
  }
  for (uint64_t unit = units; unit-- > 0;) {
    if (unit > 0) take(2 * (unit - 1), unit - 1);
    take(2 * unit + 1, unit);
    give(2 * unit);
    give(2 * unit + 1);
  }
  return events;
}

void measure_reserved(const Bench& bench) {
  const std::unique_ptr<DevicePool> pool = bench.pool();
  const std::vector<StepEvent> step = training_step(32);
  need(pool->declare(step));
  uint64_t peak = 0;
  fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
  for (int i = 0; i < 3; i++) {
    for (const StepEvent& event : step) {
      if (event.takes())
        (void)need(pool->take(event.key, event.bytes, event.stable, bench.a));
      else
        need(pool->give_back(event.key, bench.a, {}));
      pool->stats(&stats);
      peak = std::max(peak, stats.reserved_bytes);
    }
    need(pool->end_step());
  }
  std::printf("%s, \"peak_reserved_bytes\": %llu, \"bound_bytes\": %llu, \"ratio\": %.4f, \"plan_misses\": %llu}\n",
              bench.common("reserved for a declared step").c_str(), static_cast<unsigned long long>(peak),
              static_cast<unsigned long long>(stats.plan_bound_bytes),
              static_cast<double>(peak) / static_cast<double>(stats.plan_bound_bytes),
              static_cast<unsigned long long>(stats.plan_misses));
}

}  // namespace

int main(int argc, char** argv) {
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
  if (fsccl_unique_id_create(&id) != FSCCL_OK || fsccl_comm_create(&config, &comm) != FSCCL_OK) stop("no communicator");
  const std::string_view given = argc > 1 ? argv[1] : "20000";
  size_t pairs = 0;
  if (std::from_chars(given.data(), given.data() + given.size(), pairs).ec != std::errc() || !pairs)
    stop("how many pairs? a number above 0");
  Bench bench{device, *live_comm(comm), nullptr, nullptr, pairs};
  {
    const cuda::Current current(device);
    for (cuda::Stream* stream : {&bench.a, &bench.b})
      need(device.check("cuStreamCreate", device.driver().stream_create(stream, cuda::kNonBlockingStream, 0)));
  }
  for (const uint64_t bytes : {64 * (kMb >> 10), 16 * kMb, 256 * kMb})
    for (const bool two : {false, true}) measure(bench, bytes, two);
  measure_reserved(bench);
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 1;
}
