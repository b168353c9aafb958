#include "session.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>

#include "base/boot_id.h"
#include "base/limits.h"
#include "fsccl/insight.h"
#include "numbers.h"
#include "perf/pool/available.h"

namespace fsccl::perf {
namespace {
int g_rank = -1;  // for messages
}

bool succeeded(fsccl_status_t status, const char* what) {
  if (status == FSCCL_OK) return true;
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  fmt::print(stderr, "fsccl-perf: {}{}: {}: {}\n",
             g_rank < 0 ? "" : fmt::format("rank {}: ", g_rank), what, fsccl_status_string(status),
             info.text);
  return false;
}

void must(fsccl_status_t status, const char* what) {
  if (succeeded(status, what)) return;
  std::fflush(nullptr);
  std::_Exit(1);  // not exit(): other threads of the library may still run
}

double now_us() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

Session::Session(const std::optional<LocalRank>& place) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  fsccl_unique_id_t id;
  if (place) {
    g_rank = place->rank;
    if (!exchange_unique_id(*place, &id)) std::_Exit(1);
    config.unique_id = &id;
    config.rank = place->rank;
    config.ranks = place->ranks;
  }
  fsccl_launch_info_t launched = FSCCL_LAUNCH_INFO_INIT;
  // for messages of errors that come before the communicator is there
  if (!place && fsccl_launcher(&launched) == FSCCL_OK) g_rank = launched.rank;
  must(fsccl_comm_create(&config, &comm_), "fsccl_comm_create");
  if (place) explicit_bzero(&id, sizeof id);
  must(fsccl_comm_rank(comm_, &rank_), "fsccl_comm_rank");
  must(fsccl_comm_size(comm_, &ranks_), "fsccl_comm_size");
  g_rank = rank_;
  int local_rank = 0, local_size = 1;
  must(fsccl_comm_local_rank(comm_, &local_rank, &local_size), "fsccl_comm_local_rank");
  hosts_ = static_cast<int>(sum_over_ranks(uint64_t{local_rank == 0}));
  uneven_hosts_ = sum_over_ranks(uint64_t{local_size * hosts_ != ranks_}) > 0;
  shares_cores_ = find_shared_cores(static_cast<uint64_t>(local_size));
}

// Cores are those of a machine, whose ranks have one boot of a kernel in common, even if they count
// as different hosts. A quota is that of a container, whose ranks are those of one host.
bool Session::find_shared_cores(uint64_t ranks_of_host) const {
  constexpr size_t kBoot = 0, kCores = 1, kWords = kCores + 128;
  std::vector<uint64_t> mine(kWords), all(kWords * static_cast<size_t>(ranks_));
  mine[kBoot] = std::hash<std::string>()(boot_id());
  for (const int core : affinity())
    mine[kCores + static_cast<size_t>(core) / 64 % 128] |= uint64_t{1} << core % 64;
  must(fsccl_all_gather(mine.data(), all.data(), kWords, FSCCL_UINT64, comm_, nullptr, nullptr),
       "fsccl_all_gather");
  uint64_t here = 0;
  std::vector<uint64_t> together(kWords);
  for (size_t at = 0; at < all.size(); at += kWords) {
    if (all[at + kBoot] != mine[kBoot]) continue;
    here++;
    for (size_t i = kCores; i < kWords; i++) together[i] |= all[at + i];
  }
  uint64_t cores = 0;
  for (size_t i = kCores; i < kWords; i++)
    cores += static_cast<uint64_t>(std::popcount(together[i]));
  const bool shares = (cores > 0 && here > cores) || ranks_of_host > read_limits().core_quota.value;
  return sum_over_ranks(uint64_t{shares}) > 0;
}

void Session::open_pool(bool dry_run, uint64_t limit_bytes) {
  fsccl_pool_config_t pool = FSCCL_POOL_CONFIG_INIT;
  pool.name = "fsccl-perf";
  pool.dry_run = dry_run;
  pool.limit_bytes = limit_bytes;
  must(fsccl_pool_create(comm_, &pool, &pool_), "fsccl_pool_create");
}

Session::~Session() {
  if (pool_) must(fsccl_pool_destroy(pool_), "fsccl_pool_destroy");
  barrier();  // so that no rank leaves while another still waits for it
  must(fsccl_comm_destroy(comm_), "fsccl_comm_destroy");
}

void Session::end_where(bool failed, int status) const {
  if (max_over_ranks({failed ? 1.0 : 0.0})[0] == 0) return;
  std::fflush(nullptr);
  // No rank ends before all know this. The barrier itself may see the end of a rank.
  (void)fsccl_barrier(comm_, nullptr, nullptr);
  std::_Exit(status);
}

double Session::missing_bytes(uint64_t bytes_a_host) const {
  const uint64_t available = available_bytes();
  return max_over_ranks(
      {bytes_a_host > available ? static_cast<double>(bytes_a_host - available) : 0})[0];
}

void Session::must_fit(uint64_t bytes_a_host, const std::string& what,
                       const std::string& advice) const {
  const double most = missing_bytes(bytes_a_host);
  if (rank_ == 0 && most > 0)
    fmt::print(stderr,
               "fsccl-perf: {} take {} on each host, {} more than a host has available; {}\n", what,
               format_bytes(bytes_a_host), format_bytes(static_cast<uint64_t>(most)), advice);
  end_where(most > 0, 1);
}

void Session::barrier() const { must(fsccl_barrier(comm_, nullptr, nullptr), "fsccl_barrier"); }

std::vector<double> Session::all_ranks(const std::vector<double>& values) const {
  std::vector<double> result(values.size() * static_cast<size_t>(ranks_));
  must(fsccl_all_gather(values.data(), result.data(), values.size(), FSCCL_FLOAT64, comm_, nullptr,
                        nullptr),
       "fsccl_all_gather");
  return result;
}

std::vector<double> Session::max_over_ranks(std::vector<double> values) const {
  std::vector<double> result(values.size());
  must(fsccl_all_reduce(values.data(), result.data(), values.size(), FSCCL_FLOAT64, FSCCL_MAX,
                        comm_, nullptr, nullptr),
       "fsccl_all_reduce");
  return result;
}

std::vector<double> Session::sum_over_ranks(std::vector<double> values) const {
  std::vector<double> result(values.size());
  must(fsccl_all_reduce(values.data(), result.data(), values.size(), FSCCL_FLOAT64, FSCCL_SUM,
                        comm_, nullptr, nullptr),
       "fsccl_all_reduce");
  return result;
}

uint64_t Session::sum_over_ranks(uint64_t value) const {
  uint64_t result = 0;
  must(fsccl_all_reduce(&value, &result, 1, FSCCL_UINT64, FSCCL_SUM, comm_, nullptr, nullptr),
       "fsccl_all_reduce");
  return result;
}

}  // namespace fsccl::perf
