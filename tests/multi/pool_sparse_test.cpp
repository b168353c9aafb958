// Tests a pool whose steps are unknown. Ranks in processes hold units in ever new orders, reduce
// gradients meanwhile, and check every element before they give it back. The pool's file takes
// about as much memory as is live, as the system counts it. When a step repeats, the pool asks the
// system for nothing more.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "multi/processes.h"

namespace fsccl::testing::pool_sparse_tests {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kLimitMs = 150'000;
constexpr size_t kUnits = 10, kMostHeld = 4;
constexpr uint64_t kPage = 4096, kGrowth = 2 << 20;

#define CHECK_OK(call)                                                                  \
  do {                                                                                  \
    if ((call) < 0) {                                                                   \
      fsccl_error_info_t error = FSCCL_ERROR_INFO_INIT;                                 \
      fsccl_last_error(&error);                                                         \
      printf("rank %d, line %d: %s\n", self.rank, __LINE__, error.text), std::exit(20); \
    }                                                                                   \
  } while (0)

#define CHECK(condition)                                                                    \
  do {                                                                                      \
    if (!(condition))                                                                       \
      printf("rank %d, line %d: not %s\n", self.rank, __LINE__, #condition), std::exit(21); \
  } while (0)

// Returns the bytes of memory that the system has given to the arena's file.
uint64_t bytes_of_the_file() {
  for (int fd = 3; fd < 256; fd++) {
    char target[256] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (readlink(link.c_str(), target, sizeof target - 1) <= 0 ||
        !std::strstr(target, "memfd:fsccl-arena"))
      continue;
    struct stat file{};
    if (fstat(fd, &file) == 0) return static_cast<uint64_t>(file.st_blocks) * 512;
  }
  return 0;
}

float value_of(size_t unit, uint64_t element) {
  return static_cast<float>((unit * 7919 + element) % 65521);
}

struct Event {
  size_t unit;
  bool take;
};

// Returns a step that takes and gives back units in an order of its own, at most a few at once, and
// leaves none.
std::vector<Event> step_of(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Event> events;
  std::vector<size_t> held;
  for (int i = 0; i < 60 || !held.empty(); i++) {
    const bool take = i < 60 && held.size() < kMostHeld && (held.empty() || random() % 2);
    if (take) {
      const size_t unit = random() % kUnits;
      if (std::find(held.begin(), held.end(), unit) != held.end()) continue;
      held.push_back(unit);
      events.push_back({unit, true});
    } else {
      const size_t at = random() % held.size();
      events.push_back({held[at], false});
      held.erase(held.begin() + static_cast<long>(at));
    }
  }
  return events;
}

class Program {
 public:
  Program(const Child& child, fsccl_sharing_t sharing) : self(child) {
    CHECK_OK(fsccl_comm_create(nullptr, &comm_));
    fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
    config.limit_bytes = 512 << 20;
    config.record = 1;
    CHECK_OK(fsccl_pool_create(comm_, &config, &pool_));
    for (size_t u = 0; u < kUnits; u++) make_unit(u, sharing);
  }
  ~Program() {
    for (fsccl_unit_t unit : units_) CHECK_OK(fsccl_unit_destroy(unit));
    CHECK_OK(fsccl_pool_destroy(pool_));
    CHECK_OK(fsccl_comm_destroy(comm_));
  }

  void run(const std::vector<Event>& events) {
    std::vector<fsccl_work_t> works;
    for (const Event& event : events) {
      if (event.take)
        CHECK_OK(fsccl_unit_unshard(units_[event.unit], FSCCL_UNSHARD_READ, nullptr, nullptr));
      else
        let_go(event.unit, &works);
      look();
    }
    for (fsccl_work_t work : works) CHECK_OK(fsccl_work_wait(work, -1));
    CHECK_OK(fsccl_pool_step(pool_));
    look();
  }
  fsccl_pool_stats_t stats() {
    fsccl_pool_stats_t stats = FSCCL_POOL_STATS_INIT;
    CHECK_OK(fsccl_pool_stats(pool_, &stats));
    return stats;
  }
  uint64_t most() const { return most_; }
  double worst() const { return worst_; }

 private:
  static uint64_t count_of(size_t unit) { return (1 + unit * unit % 7) * 600'000 + unit * 1000; }

  void make_unit(size_t u, fsccl_sharing_t sharing) {
    fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
    config.shard_comm = comm_;
    config.pool = pool_;
    config.sharing = sharing;
    config.wire_dtype = config.reduce_dtype = FSCCL_FLOAT32;
    fsccl_param_t weight = FSCCL_PARAM_INIT;
    weight.dims = 1, weight.shape[0] = static_cast<int64_t>(count_of(u));
    fsccl_view_t shard;
    CHECK_OK(fsccl_unit_create(&config, &weight, 1, &units_.emplace_back()));
    CHECK_OK(fsccl_unit_shard(units_[u], 0, &shard));
    for (uint64_t i = 0; i < shard.count; i++)
      static_cast<float*>(shard.data)[i] = value_of(u, shard.offset + i);
  }

  // Checks a unit and reshards it. For every second unit it takes the gradients before, and then
  // starts a reduction, which goes on while the next calls are made.
  void let_go(size_t u, std::vector<fsccl_work_t>* works) {
    fsccl_view_t whole, grad;
    CHECK_OK(fsccl_unit_param(units_[u], 0, &whole));
    for (uint64_t i = 0; i < whole.count; i++)
      CHECK(static_cast<float*>(whole.data)[i] == value_of(u, i));
    if (u % 2) {
      CHECK_OK(fsccl_unit_grad(units_[u], 0, nullptr, &grad));
      for (uint64_t i = 0; i < grad.count; i++)
        static_cast<float*>(grad.data)[i] = static_cast<float>(i % 1000);
      CHECK_OK(fsccl_unit_reshard(units_[u], nullptr));
      look();
      CHECK_OK(fsccl_unit_reduce_grads(units_[u], nullptr, nullptr, &works->emplace_back()));
    } else {
      CHECK_OK(fsccl_unit_reshard(units_[u], nullptr));
    }
  }

  // Checks that the pool holds little more memory for slots than were live or planned at any time
  // so far, and that the system counts no more memory than the pool does.
  void look() {
    const fsccl_pool_stats_t now = stats();
    most_ = std::max({most_, now.collective_peak_bytes, now.planned_bytes});
    // The ranks share one file, so their bytes are added up. No rank goes on, and changes its
    // bytes, until all ranks have looked.
    uint64_t all[kRanks] = {};
    CHECK_OK(fsccl_all_gather(&now.reserved_bytes, all, sizeof now.reserved_bytes, FSCCL_UINT8,
                              comm_, nullptr, nullptr));
    uint64_t reserved = 0;
    for (const uint64_t bytes : all) reserved += bytes;
    const uint64_t exist = bytes_of_the_file();
    CHECK(exist > 0 && exist <= reserved + kRanks * kPage);
    CHECK_OK(fsccl_barrier(comm_, nullptr, nullptr));
    if (self.rank != 0) return;  // rank 0 hosts the shared slots
    const uint64_t slots = now.reserved_bytes - blocks();
    if (most_ > 16 * kGrowth)
      worst_ = std::max(worst_, static_cast<double>(slots) / static_cast<double>(most_));
    CHECK(slots <= most_ + most_ / 32 + 4 * kGrowth);
  }
  uint64_t blocks() {
    const uint64_t live = stats().local_live_bytes;
    return (live + kGrowth - 1) / kGrowth * kGrowth;
  }

  const Child& self;
  fsccl_comm_t comm_ = nullptr;
  fsccl_pool_t pool_ = nullptr;
  std::vector<fsccl_unit_t> units_;
  uint64_t most_ = 0;
  double worst_ = 0;
};

int member(const Child& child, fsccl_sharing_t sharing) {
  const Child& self = child;
  Program program(child, sharing);
  for (uint64_t seed = 1; seed <= 8; seed++) program.run(step_of(seed));  // all steps differ
  const uint64_t growths = program.stats().growths;
  // The last step comes again, so that the plan's bytes are all there by then.
  for (int i = 0; i < 4; i++) program.run(step_of(8));
  const fsccl_pool_stats_t known = program.stats();
  for (int i = 0; i < 3; i++) program.run(step_of(8));
  const fsccl_pool_stats_t now = program.stats();
  CHECK(now.growths == known.growths && now.reserved_bytes == known.reserved_bytes &&
        now.plan_misses == known.plan_misses);
  CHECK(now.given_back_bytes == known.given_back_bytes &&
        (known.given_back_bytes > kGrowth || self.rank != 0));
  printf("most %.1f MiB, worst %.3f of it, growths %d then %d\n",
         static_cast<double>(program.most()) / 0x1p20, program.worst(), static_cast<int>(growths),
         static_cast<int>(now.growths));
  return 0;
}

void run(const char* role, int port, const char* transport = "auto") {
  if (sysconf(_SC_PAGESIZE) != static_cast<long>(kPage))
    GTEST_SKIP() << "pages are larger than a slot's";
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++) {
    Variables variables = job(rank, kRanks, port);
    variables.emplace_back("CUDA_VISIBLE_DEVICES", "");  // a process that sees a GPU keeps pages
    variables.emplace_back("FSCCL_TRANSPORT", transport);
    processes.start(role, rank, kRanks, variables);
  }
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < kRanks; rank++)
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  printf("%s", processes.output(0).c_str());
}

TEST(PoolSparse, SharedSlotsTakeLittleMoreThanIsLive) { run("shared", 20430); }
TEST(PoolSparse, PrivateSlotsTakeLittleMoreThanIsLive) { run("private", 20431); }
// A transport that moves bytes by address needs no more memory than shared memory does.
TEST(PoolSparse, SlotsThatGoOverTcpTakeLittleMoreThanIsLive) { run("private", 20432, "tcp"); }

const AddRoles roles{
    {"shared", [](const Child& self) { return member(self, FSCCL_SHARING_READ_ONLY); }},
    {"private", [](const Child& self) { return member(self, FSCCL_SHARING_PRIVATE); }}};

}  // namespace
}  // namespace fsccl::testing::pool_sparse_tests
