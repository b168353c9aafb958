#include "this_machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
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

// Two ranks, which are threads, of a communicator that lives only for this.
std::optional<Json> measured_costs() {
  fsccl_unique_id_t id;
  if (failed(fsccl_unique_id_create(&id))) return std::nullopt;
  std::optional<Json> found;
  const auto rank_of = [&](int rank) {
    fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
    config.unique_id = &id;
    config.rank = rank;
    config.ranks = 2;
    fsccl_comm_t comm = nullptr;
    if (failed(fsccl_comm_create(&config, &comm))) return;
    std::vector<char> text(size_t{1} << 16);
    if (rank == 0 && !failed(fsccl_explain(comm, "all_gather", 1 << 20, text.data(), text.size())))
      found = Json::parse(text.data())["measured"];
    failed(fsccl_comm_destroy(comm));
  };
  std::thread other(rank_of, 1);
  rank_of(0);
  other.join();
  return found;
}

}  // namespace

std::optional<Json> measure_this_machine() {
  std::optional<Json> costs = measured_costs();
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
