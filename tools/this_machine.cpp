#include "this_machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/limits.h"
#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"
#include "race/matmul.h"
#include "this_network.h"

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kCopied = size_t{64} << 20;
constexpr int kTimes = 5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double copy_seconds() {
  std::vector<char> from(kCopied, 1), to(kCopied);
  double best = 1e9;
  for (int i = 0; i < kTimes; i++) {
    const auto begin = Clock::now();
    std::copy(from.begin(), from.end(), to.begin());
    best = std::min(best, seconds_since(begin));
    from[static_cast<size_t>(i)] = to[kCopied - 1];
  }
  return best;
}

// Returns the time of a copy of more bytes than the caches hold while another core copies as well,
// as the ranks of a unit do.
double measured_copy_ns_per_kib(int cores) {
  double other = 0;
  std::optional<std::thread> beside;
  if (cores > 1) beside.emplace([&other] { other = copy_seconds(); });
  const double own = copy_seconds();
  if (beside) beside->join();
  return std::max(own, other) * 1e9 / (kCopied / 1024);
}

// Units with one parameter each. They are gathered and reduced one after the other, as in a step,
// and the shards and gradients of all of them are much larger than the caches.
struct UnitSize {
  size_t elements, units;
};
constexpr size_t kElements = size_t{64} << 20;  // elements of all units of a size
// Passes over a large unit use stores that bypass the caches.
constexpr UnitSize kLarge{size_t{16} << 20, 4};
// Passes over a small unit do not: the reduction, which is the larger pass, reads and writes half
// of the bytes from which on passes bypass the caches.
UnitSize small_unit(size_t streaming_bytes) {
  const size_t elements = std::clamp<size_t>(streaming_bytes / 8, 4096, kLarge.elements);
  return {elements, std::min<size_t>(kElements / elements, 64)};
}
constexpr int kRounds = 5;  // the first is not counted, because its memory is untouched
// The most ranks that share cores in a measurement, unless two of them share each core.
constexpr int kMostTurns = 16;

// The seconds of a unit: medians over the rounds of the mean over all units. The mean includes
// calls that something disturbs, as the time of a step does.
struct UnitSeconds {
  double gather = 0, reduce = 0;
  double both = 0;  // a reduction and the gather of another unit after it, as in a backward pass
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The units of a rank, with fp32 shards. A function that returns bool returns false after a call
// has failed and its error was printed.
class MeasuredUnits {
 public:
  MeasuredUnits(fsccl_comm_t comm, int ranks, UnitSize size)
      : comm_(comm), shard_(size.elements / static_cast<size_t>(ranks)), size_(size) {
    size_.elements = shard_ * static_cast<size_t>(ranks);
  }
  ~MeasuredUnits() {
    for (const fsccl_unit_t unit : units_) failed(fsccl_unit_destroy(unit));
    if (pool_) failed(fsccl_pool_destroy(pool_));
  }
  MeasuredUnits(const MeasuredUnits&) = delete;
  MeasuredUnits& operator=(const MeasuredUnits&) = delete;

  bool create(fsccl_dtype_t wire, fsccl_dtype_t reduce) {
    const fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
    if (failed(fsccl_pool_create(comm_, &memory, &pool_))) return false;
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = comm_;
    config.pool = pool_;
    config.wire_dtype = wire;
    config.reduce_dtype = reduce;
    config.grad_dtype = FSCCL_FLOAT32;
    fsccl_param_t param = FSCCL_PARAM_INIT;
    param.name = "weight";
    param.dims = 1;
    param.shape[0] = static_cast<int64_t>(size_.elements);
    for (size_t i = 0; i < size_.units; i++) {
      const std::string name = fmt::format("measured {}", i);
      config.name = name.c_str();
      memory_.emplace_back(shard_), memory_.emplace_back(shard_);
      param.shard = memory_[2 * i].data();
      param.sharded_grad = memory_[2 * i + 1].data();
      fsccl_unit_t unit = nullptr;
      if (failed(fsccl_unit_create(&config, &param, 1, &unit))) return false;
      units_.push_back(unit);
    }
    return true;
  }

  bool time(UnitSeconds* found) {
    std::vector<double> gathers, reductions, both;
    for (int round = 0; round < kRounds; round++) {
      write_shards(static_cast<float>(round));
      UnitSeconds sum;
      for (const fsccl_unit_t unit : units_)
        if (!time(unit, &sum)) return false;
      // No cache holds the shards of a unit that was gathered half of the units ago.
      for (size_t i = 0; i < units_.size(); i++)
        if (!time_both(units_[i], units_[(i + units_.size() / 2) % units_.size()], &sum))
          return false;
      if (round == 0) continue;
      gathers.push_back(sum.gather / static_cast<double>(size_.units));
      reductions.push_back(sum.reduce / static_cast<double>(size_.units));
      both.push_back(sum.both / static_cast<double>(size_.units));
    }
    *found = {median(std::move(gathers)), median(std::move(reductions)), median(std::move(both))};
    return true;
  }

 private:
  // Writes all shards, as an optimizer does between two steps, so that no cache holds what is
  // gathered.
  void write_shards(float value) {
    for (size_t i = 0; i < memory_.size(); i += 2)
      std::fill(memory_[i].begin(), memory_[i].end(), value);
  }

  // Adds the times of a gather and of a reduction, each of which begins on all ranks at once.
  bool time(fsccl_unit_t unit, UnitSeconds* sum) {
    if (failed(fsccl_barrier(comm_, nullptr, nullptr))) return false;
    auto begin = Clock::now();
    if (!gather(unit)) return false;
    sum->gather += seconds_since(begin);
    if (failed(fsccl_unit_reshard(unit, nullptr)) || !write_gradients(unit)) return false;
    begin = Clock::now();
    if (!reduce(unit)) return false;
    sum->reduce += seconds_since(begin);
    return true;
  }
  bool time_both(fsccl_unit_t reduced, fsccl_unit_t gathered, UnitSeconds* sum) {
    if (!write_gradients(reduced)) return false;
    const auto begin = Clock::now();
    if (!reduce(reduced) || !gather(gathered)) return false;
    sum->both += seconds_since(begin);
    return !failed(fsccl_unit_reshard(gathered, nullptr));
  }
  static bool reduce(fsccl_unit_t unit) {
    return !failed(fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr));
  }
  static bool gather(fsccl_unit_t unit) {
    return !failed(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr));
  }
  bool write_gradients(fsccl_unit_t unit) {
    fsccl_view_t gradient;
    if (failed(fsccl_unit_grad(unit, 0, nullptr, &gradient))) return false;
    std::memset(gradient.data, 0, gradient.count * fsccl_dtype_size(gradient.dtype));
    return !failed(fsccl_barrier(comm_, nullptr, nullptr));
  }

  const fsccl_comm_t comm_;
  const size_t shard_;  // elements of this rank
  UnitSize size_;
  fsccl_pool_t pool_ = nullptr;
  std::vector<fsccl_unit_t> units_;
  // The shards and sharded gradients, unit by unit. They lie in memory of the caller, as those of a
  // framework do. Memory of the pool has huge pages, with which both passes are faster by a third
  // to a half.
  std::vector<std::vector<float>> memory_;
};

struct Types {
  fsccl_dtype_t wire, reduce;
};

std::optional<UnitSeconds> measured_units(fsccl_comm_t comm, int ranks, UnitSize size,
                                          Types types) {
  MeasuredUnits units(comm, ranks, size);
  UnitSeconds found;
  if (!units.create(types.wire, types.reduce) || !units.time(&found)) return std::nullopt;
  return found;
}

// Runs `work(rank, comm)` on the ranks of a communicator that lives only during this call. The
// ranks are threads.
template <class Work>
bool with_ranks(int ranks, const Work& work) {
  fsccl_unique_id_t id;
  if (failed(fsccl_unique_id_create(&id))) return false;
  std::atomic<bool> good = true;
  const auto rank_of = [&](int rank) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = rank;
    config.ranks = ranks;
    fsccl_comm_t comm = nullptr;
    if (failed(fsccl_comm_create(&config, &comm)) || !work(rank, comm)) good = false;
    if (comm) failed(fsccl_comm_destroy(comm));
  };
  std::vector<std::thread> others;
  for (int rank = 1; rank < ranks; rank++) others.emplace_back(rank_of, rank);
  rank_of(0);
  for (std::thread& other : others) other.join();
  return good;
}

// Returns what the library says of a communicator.
std::optional<Json> explained_by(fsccl_comm_t comm) {
  std::vector<char> text(size_t{1} << 16);
  if (failed(fsccl_explain(comm, "all_gather", 1 << 20, text.data(), text.size())))
    return std::nullopt;
  return Json::parse(text.data());
}

// The times of units, each of which is that of the slowest rank.
struct Measured {
  Json explained;  // fsccl_explain() of a communicator of two ranks
  UnitSize small_size;
  UnitSeconds large, small;
};

// `explained` is null if these ranks are two, which then explain their own communicator.
std::optional<Measured> measured_on(int ranks, const Json& explained, Types types) {
  Measured found;
  std::mutex lock;
  const auto add = [&lock](const UnitSeconds& own, UnitSeconds* most) {
    const std::lock_guard<std::mutex> locked(lock);
    most->gather = std::max(most->gather, own.gather);
    most->reduce = std::max(most->reduce, own.reduce);
    most->both = std::max(most->both, own.both);
  };
  const bool good = with_ranks(ranks, [&](int rank, fsccl_comm_t comm) {
    const std::optional<Json> own = explained.is_null() ? explained_by(comm) : explained;
    if (!own) return false;
    const UnitSize small_size = small_unit(own->value("streaming_bytes", size_t{0}));
    if (rank == 0) found.explained = *own, found.small_size = small_size;
    const auto small = measured_units(comm, ranks, small_size, types),
               large = small ? measured_units(comm, ranks, kLarge, types) : std::nullopt;
    if (!large) return false;
    add(*small, &found.small), add(*large, &found.large);
    return true;
  });
  if (!good) return std::nullopt;
  return found;
}

// The KiB that all ranks of a host together read and write for a unit. They cast all shards, and
// each rank sums its part of the gradients of all ranks.
struct Moved {
  double gather_kib, reduce_kib;
};
Moved moved_by(int ranks, UnitSize size, Types types) {
  const double kib = static_cast<double>(size.elements) / 1024;
  const auto wire = static_cast<double>(fsccl_dtype_size(types.wire)),
             reduce = static_cast<double>(fsccl_dtype_size(types.reduce));
  return {kib * (sizeof(float) + wire), kib * (ranks * reduce + sizeof(float))};
}

// Adds what ranks that each have a core take for each KiB that one of them reads or writes. `ranks`
// of them were measured, and `sharers` shared a core.
void add_passes(const UnitSeconds& seconds, double reduce, UnitSize size, int ranks, double sharers,
                Types types, const std::string& how, Json* costs) {
  const Moved moved = moved_by(ranks, size, types);
  const double per_kib = 1e9 * ranks / sharers;
  (*costs)["gather" + how] = per_kib * seconds.gather / moved.gather_kib;
  (*costs)["reduce" + how] = per_kib * reduce / moved.reduce_kib;
}

std::optional<Json> measured_costs(Types types, int ranks, int cores) {
  // Ranks that share cores wait for their turns, so they are measured as they will run. Others are
  // measured by two ranks.
  const int most = std::max(kMostTurns, 2 * cores),
            many = ranks > cores ? std::clamp(ranks, 2, most) : 2;
  const double sharers = std::max(1.0, static_cast<double>(many) / cores);
  Json explained;
  if (many > 2 && !with_ranks(2, [&](int rank, fsccl_comm_t comm) {
        const std::optional<Json> own = explained_by(comm);
        if (own && rank == 0) explained = *own;
        return own.has_value();
      }))
    return std::nullopt;
  const std::optional<Measured> units = measured_on(many, explained, types);
  if (!units) return std::nullopt;
  Json found = units->explained.value("measured", Json::object());
  if (const auto network = measured_tcp_ns_per_kib()) found["network_ns_per_kib"] = *network;
  // The library names no such size if all stores bypass the caches.
  found["streaming_bytes"] = units->explained.value("streaming_bytes", size_t{0});
  const UnitSeconds &small = units->small, &large = units->large;
  // A rank that has reduced a small unit leaves its core to the others, and waits for them in the
  // next gather. In a large unit this is a small part of the time.
  const double of_small =
      sharers > 1 ? std::max(small.reduce, small.both - small.gather) : small.reduce;
  add_passes(large, large.reduce, kLarge, many, sharers, types, "_ns_per_kib", &found);
  add_passes(small, of_small, units->small_size, many, sharers, types, "_cached_ns_per_kib",
             &found);
  return found;
}

}  // namespace

std::optional<Json> measure_this_machine(fsccl_dtype_t wire, fsccl_dtype_t reduce, int ranks) {
  const fsccl::Limits limits = fsccl::read_limits();
  const int cores = static_cast<int>(limits.cores.value);
  const uint64_t memory = limits.memory_bytes.value;
  std::optional<Json> costs = measured_costs({wire, reduce}, ranks, cores);
  if (!costs) return std::nullopt;
  const MatmulRate rate = measured_matmul();
  const double per_kib = measured_copy_ns_per_kib(cores);
  // Communicators measure at sizes that caches hold, but shards and gradients of a model lie in
  // memory.
  (*costs)["copy_ns_per_kib"] = std::max((*costs)["copy_ns_per_kib"].get<double>(), per_kib);
  Json machine{
      {"name", "this machine"},
      {"source", fmt::format("measured by fsccl-info forecast: products of matrices in fp32 on one "
                             "core with {} instructions; other types count as fp32, and --tflops "
                             "replaces the rate",
                             rate.instructions)},
      {"device", "cpu"},
      {"topology", "here"},
      {"efficiency", 1.0},
      {"cores_per_host", cores},
      {"host_memory_bytes", memory == fsccl::kUnlimited ? 0 : memory},
      {"memory_gb_per_s", 2 * 1024 / per_kib},  // read and written
      {"tflops", {{"fp32", rate.tflops}, {"bf16", rate.tflops}, {"fp16", rate.tflops}}},
      {"measured", *costs}};
  // All ranks are on this machine, even if they are more than its cores.
  if (ranks > cores) machine["ranks_per_host"] = ranks;
  return machine;
}
