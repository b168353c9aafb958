#include "this_machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "fsccl/fsccl.h"
#include "fsccl/insight.h"
#include "info_error.h"

namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr size_t kSide = 384, kBlock = 48;
constexpr size_t kCopied = size_t{64} << 20;
constexpr int kTimes = 5;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// c += a b, in blocks that stay in the caches; the inner loop is one that compilers turn into
// vectors.
void multiply(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c) {
  for (size_t ii = 0; ii < kSide; ii += kBlock)
    for (size_t kk = 0; kk < kSide; kk += kBlock)
      for (size_t i = ii; i < ii + kBlock; i++)
        for (size_t k = kk; k < kk + kBlock; k++) {
          const float factor = a[i * kSide + k];
          float* const row = &c[i * kSide];
          const float* const other = &b[k * kSide];
          for (size_t j = 0; j < kSide; j++) row[j] += factor * other[j];
        }
}

double measured_tflops() {
  std::vector<float> a(kSide * kSide, 0.5F), b(kSide * kSide, 0.25F), c(kSide * kSide);
  double best = 1e9;
  for (int i = 0; i < kTimes; i++) {
    const auto begin = Clock::now();
    multiply(a, b, c);
    best = std::min(best, seconds_since(begin));
  }
  // The result is used, so that the work is done.
  return c[kSide] > 0 ? 2.0 * kSide * kSide * kSide / best / 1e12 : 0;
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

// Returns the time of a copy beyond the caches while another core copies as well, as the ranks of a
// unit do.
double measured_copy_ns_per_kib(int cores) {
  double other = 0;
  std::optional<std::thread> beside;
  if (cores > 1) beside.emplace([&other] { other = copy_seconds(); });
  const double own = copy_seconds();
  if (beside) beside->join();
  return std::max(own, other) * 1e9 / (kCopied / 1024);
}

// Units of one parameter each, which are gathered and reduced one after the other as in a step: the
// shards and the gradients of all together are far beyond the caches.
constexpr int64_t kUnitElements = int64_t{16} << 20;
constexpr size_t kShard = size_t{kUnitElements} / 2;  // elements of a rank of two
constexpr size_t kUnits = 4;
constexpr int kRounds = 5;  // the first is not counted: it meets memory that nobody has touched

// Seconds of a unit: the medians of the rounds' means. A round's mean has the calls that something
// disturbs, as the sum over the units of a step has.
struct UnitSeconds {
  double gather = 0, reduce = 0;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// The units of a rank of two, for fp32 shards of these types. Every function returns false if a
// call has failed, which it has said.
class MeasuredUnits {
 public:
  explicit MeasuredUnits(fsccl_comm_t comm) : comm_(comm) {}
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
    param.shape[0] = kUnitElements;
    for (size_t i = 0; i < kUnits; i++) {
      const std::string name = fmt::format("measured {}", i);
      config.name = name.c_str();
      memory_.emplace_back(kShard), memory_.emplace_back(kShard);
      param.shard = memory_[2 * i].data();
      param.sharded_grad = memory_[2 * i + 1].data();
      fsccl_unit_t unit = nullptr;
      if (failed(fsccl_unit_create(&config, &param, 1, &unit))) return false;
      units_.push_back(unit);
    }
    return true;
  }

  bool time(UnitSeconds* found) {
    std::vector<double> gathers, reductions;
    for (int round = 0; round < kRounds; round++) {
      write_shards(static_cast<float>(round));
      UnitSeconds sum;
      for (const fsccl_unit_t unit : units_) {
        double gather = 0, reduce = 0;
        if (!time(unit, &gather, &reduce)) return false;
        sum.gather += gather, sum.reduce += reduce;
      }
      if (round == 0) continue;
      gathers.push_back(sum.gather / kUnits);
      reductions.push_back(sum.reduce / kUnits);
    }
    *found = {median(std::move(gathers)), median(std::move(reductions))};
    return true;
  }

 private:
  // Writes all shards, as an optimizer does between two steps: what is gathered is in no cache.
  void write_shards(float value) {
    for (size_t i = 0; i < memory_.size(); i += 2)
      std::fill(memory_[i].begin(), memory_[i].end(), value);
  }

  bool time(fsccl_unit_t unit, double* gather, double* reduce) {
    fsccl_view_t gradient;
    if (failed(fsccl_barrier(comm_, nullptr, nullptr))) return false;
    auto begin = Clock::now();
    if (failed(fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr))) return false;
    *gather = seconds_since(begin);
    if (failed(fsccl_unit_reshard(unit, nullptr)) ||
        failed(fsccl_unit_grad(unit, 0, nullptr, &gradient)))
      return false;
    std::memset(gradient.data, 0, gradient.count * fsccl_dtype_size(gradient.dtype));
    if (failed(fsccl_barrier(comm_, nullptr, nullptr))) return false;
    begin = Clock::now();
    if (failed(fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr))) return false;
    *reduce = seconds_since(begin);
    return true;
  }

  const fsccl_comm_t comm_;
  fsccl_pool_t pool_ = nullptr;
  std::vector<fsccl_unit_t> units_;
  // Shards and their gradients, unit by unit, in memory of the caller's as a framework has it. The
  // pool's own has huge pages, through which both are faster by a third to a half.
  std::vector<std::vector<float>> memory_;
};

std::optional<UnitSeconds> measured_units(fsccl_comm_t comm, fsccl_dtype_t wire,
                                          fsccl_dtype_t reduce) {
  MeasuredUnits units(comm);
  UnitSeconds found;
  if (!units.create(wire, reduce) || !units.time(&found)) return std::nullopt;
  return found;
}

// Two ranks, which are threads, of a communicator that lives only for this.
std::optional<Json> measured_costs(fsccl_dtype_t wire, fsccl_dtype_t reduce) {
  fsccl_unique_id_t id;
  if (failed(fsccl_unique_id_create(&id))) return std::nullopt;
  std::optional<Json> found;
  std::array<std::optional<UnitSeconds>, 2> times;
  const auto rank_of = [&](int rank) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = rank;
    config.ranks = 2;
    fsccl_comm_t comm = nullptr;
    if (failed(fsccl_comm_create(&config, &comm))) return;
    std::vector<char> text(size_t{1} << 16);
    times[static_cast<size_t>(rank)] = measured_units(comm, wire, reduce);
    if (rank == 0 && !failed(fsccl_explain(comm, "all_gather", 1 << 20, text.data(), text.size())))
      found = Json::parse(text.data())["measured"];
    failed(fsccl_comm_destroy(comm));
  };
  std::thread other(rank_of, 1);
  rank_of(0);
  other.join();
  if (!found || !times[0] || !times[1]) return std::nullopt;
  // A rank casts its half of the shards, and reduces its half of the gradients of both.
  constexpr double kHalfKib = static_cast<double>(kUnitElements) / 2 / 1024;
  (*found)["gather_ns_per_kib"] =
      1e9 * std::max(times[0]->gather, times[1]->gather) / (kHalfKib * sizeof(float));
  (*found)["reduce_ns_per_kib"] = 1e9 * std::max(times[0]->reduce, times[1]->reduce) /
                                  (2 * kHalfKib * static_cast<double>(fsccl_dtype_size(reduce)));
  return found;
}

}  // namespace

std::optional<Json> measure_this_machine(fsccl_dtype_t wire, fsccl_dtype_t reduce) {
  std::optional<Json> costs = measured_costs(wire, reduce);
  if (!costs) return std::nullopt;
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  const auto memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const double tflops = measured_tflops(), per_kib = measured_copy_ns_per_kib(cores);
  // Communicators measure at sizes that caches hold; shards and gradients of a model lie in memory.
  (*costs)["copy_ns_per_kib"] = std::max((*costs)["copy_ns_per_kib"].get<double>(), per_kib);
  return Json{{"name", "this machine"},
              {"source",
               "measured by fsccl-info forecast with a multiplication of its own; a "
               "library of matrices does more: --tflops"},
              {"device", "cpu"},
              {"topology", "here"},
              {"efficiency", 1.0},
              {"memory_bytes", memory / static_cast<uint64_t>(cores)},
              {"memory_gb_per_s", 2 * 1024 / per_kib},  // read and written
              {"tflops", {{"fp32", tflops}, {"bf16", tflops}, {"fp16", tflops}}},
              {"measured", *costs}};
}
