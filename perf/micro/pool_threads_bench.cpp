// Measures what it costs to take and give back a slot on the planned path. The ranks are threads
// that run at the same time, each with its own units in a pool that they share. A sample is the
// mean over a batch of 32 slots. The program prints the percentiles of the samples on the slowest
// thread, for the whole pool (ledger, placement, records), for the placement alone, and for an
// indexed array, as a lower bound.
//
//   pool_threads_bench [THREADS [STEPS]]
#include <fmt/format.h>

#include <algorithm>
#include <barrier>
#include <charconv>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "allocators/placement/collective_region.h"
#include "api/objects.h"
#include "perf/pool/timing.h"
#include "pool/host/host_pool.h"

namespace {

using namespace fsccl;

constexpr uint64_t kUnits = 33, kUnitBytes = 64 << 10, kGradient = 64;

struct Percentiles {
  double p50 = 0, p99 = 0;
};
struct Times {
  Percentiles pool, region, array;
};

[[noreturn]] void stop(const char* what) {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  fmt::print(stderr, "{}: {}\n", what, info.text ? info.text : "");
  std::exit(1);
}

// Returns a step of forward and backward, in which one unit is gathered ahead.
std::vector<StepEvent> step() {
  std::vector<StepEvent> events;
  const auto take = [&](uint64_t key, bool stable) {
    events.push_back({.stable = stable, .key = key, .bytes = kUnitBytes});
  };
  const auto give = [&](uint64_t key) { events.push_back({.op = StepOp::kGiveBack, .key = key}); };
  take(1, true);
  for (uint64_t u = 1; u <= kUnits; u++) {
    if (u < kUnits) take(u + 1, true);
    give(u);
  }
  take(kUnits, true);
  for (uint64_t u = kUnits; u > 0; u--) {
    take(kGradient + u, false);
    if (u > 1) take(u - 1, true);
    give(u);
    give(kGradient + u);
  }
  return events;
}

template <class Apply, class End>
Percentiles time_steps(int steps, std::barrier<>& together, Apply&& apply, End&& end) {
  const std::vector<StepEvent> events = step();
  perf::BatchTimes times;
  for (int nth = -8; nth < steps; nth++) {
    if (nth == 0) {
      times.clear();
      together.arrive_and_wait();
    }
    if (!times.run(events, apply)) stop("a slot was refused");
    end();
  }
  together.arrive_and_wait();
  std::vector<double> samples = times.samples_ns();
  std::sort(samples.begin(), samples.end());
  return {samples[samples.size() / 2], samples[samples.size() * 99 / 100]};
}

Percentiles time_pool(fsccl_comm_t comm, int steps, std::barrier<>& together) {
  fsccl_pool_t handle = nullptr;
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  config.record = 1;
  if (fsccl_pool_create(comm, &config, &handle) != FSCCL_OK) stop("fsccl_pool_create");
  Result<Ref<Pool>> found = pool_of(handle);
  auto& pool = static_cast<HostPool&>(*found.value());
  const HostPool::Requester requester{pool.comm(), {}};
  for (uint64_t u = 1; u <= kUnits; u++) {
    pool.journal().name_slot(u, UseKind::kParameters, "layer" + std::to_string(u));
    pool.journal().name_slot(kGradient + u, UseKind::kGradients, "layer" + std::to_string(u));
  }
  std::vector<HostPool::SlotName> names(kGradient + kUnits + 1);
  for (uint64_t u = 1; u <= kUnits; u++)
    for (const uint64_t key : {u, kGradient + u}) names[key] = pool.name_of(key);
  const auto apply = [&](const StepEvent& event) {
    if (event.takes())
      return pool
          .take(PartKind::own, pool.rank(), names[event.key], event.bytes, event.stable, requester)
          .ok();
    const uint64_t position = pool.open_position();
    const bool given_back =
        pool.give_back(PartKind::own, names[event.key], position, pool.comm().engine()).ok();
    pool.done_last();
    return given_back;
  };
  const Percentiles result = time_steps(steps, together, apply, [&] {
    if (!pool.end_step().ok()) stop("end of a step");
  });
  if (fsccl_pool_destroy(handle) != FSCCL_OK) stop("fsccl_pool_destroy");
  return result;
}

Percentiles time_region(int steps, std::barrier<>& together) {
  CollectiveRegion region(uint64_t{1} << 40, true);
  uint64_t position = 0;
  return time_steps(
      steps, together,
      [&](const StepEvent& event) {
        return event.takes() ? region.take(event.key, event.bytes, event.stable, ++position).ok()
                             : region.give_back(event.key, ++position).ok();
      },
      [&] { region.end_step(); });
}

Percentiles time_array(int steps, std::barrier<>& together) {
  std::vector<uint64_t> offset(kGradient + kUnits + 1), taken(offset.size());
  volatile uint64_t sink = 0;
  return time_steps(
      steps, together,
      [&](const StepEvent& event) {
        if (event.takes())
          sink = offset[event.key] + ++taken[event.key];
        else
          --taken[event.key];
        return true;
      },
      [] {});
}

Times run_rank(const fsccl_unique_id_t& id, int rank, int ranks, int steps,
               std::barrier<>& together) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  config.unique_id = &id;
  config.rank = rank;
  config.ranks = ranks;
  fsccl_comm_t comm = nullptr;
  if (fsccl_comm_create(&config, &comm) != FSCCL_OK) stop("fsccl_comm_create");
  const Times times{time_pool(comm, steps, together), time_region(steps, together),
                    time_array(steps, together)};
  if (fsccl_comm_destroy(comm) != FSCCL_OK) stop("fsccl_comm_destroy");
  return times;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string_view> given(arguments, arguments + count);
  const auto number = [&](size_t nth, int otherwise) {
    if (nth < given.size())
      std::from_chars(given[nth].data(), given[nth].data() + given[nth].size(), otherwise);
    return std::max(otherwise, 1);
  };
  const int ranks = number(1, 2), steps = number(2, 2000);
  fsccl_unique_id_t id;
  if (fsccl_unique_id_create(&id) != FSCCL_OK) stop("fsccl_unique_id_create");
  std::barrier together(ranks);
  std::vector<Times> times(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; rank++)
    threads.emplace_back([&, rank] {
      times[static_cast<size_t>(rank)] = run_rank(id, rank, ranks, steps, together);
    });
  for (std::thread& thread : threads) thread.join();
  fmt::print("{} threads; ns of a slot, taken and given back: p50, p99\n", ranks);
  for (const auto& [name, of] :
       {std::pair("pool", &Times::pool), std::pair("placement alone", &Times::region),
        std::pair("indexed array", &Times::array)}) {
    Percentiles worst;
    for (const Times& one : times)
      worst = {std::max(worst.p50, (one.*of).p50), std::max(worst.p99, (one.*of).p99)};
    fmt::print("  {:<16} {:>7.1f} {:>7.1f}\n", name, worst.p50, worst.p99);
  }
  return 0;
}
