// Tests calls that wait for another rank outside of operations: they end when that rank dies,
// leaves or is stopped, and when another thread aborts. It also tests how much waiting takes from
// computations beside it.
#include <fsccl/fsccl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <thread>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::waits_tests {
namespace {

using ::testing::HasSubstr;
constexpr int64_t kLimitMs = 60'000;
constexpr int kBarriers = 4;

// Stops rank 0 in the middle of its reduction after printing so. The test decides how it ends.
void hold(void*, fsccl_unit_t, size_t) {
  std::puts("holding");
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGUSR1);
  int signal = 0;
  sigwait(&end, &signal);
  exit(0);
}

// Rank 0 holds all of a parameter, so rank 1 has nothing to reduce: its call is over while rank 0
// still reads its gradients. The next grad() of rank 1 waits until rank 0 has read them.
int grad(const Child& self) {
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &end, nullptr);
  fsccl_comm_t comm = nullptr;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_reduce_config_t held = FSCCL_REDUCE_CONFIG_INIT;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  fsccl_unit_t unit = nullptr;
  fsccl_view_t view;
  param.dims = 2, param.shape[0] = 1, param.shape[1] = 1 << 16;
  memory.limit_bytes = 64 << 20;
  config.layout = FSCCL_LAYOUT_PER_PARAM;
  if (!good("join", fsccl_comm_create(nullptr, &comm))) return 3;
  config.shard_comm = comm;
  if (!good("pool", fsccl_pool_create(comm, &memory, &config.pool))) return 4;
  if (!good("unit", fsccl_unit_create(&config, &param, 1, &unit))) return 5;
  for (int round = 0; round < 2; round++) {  // then the plan gives the slot the same place always
    if (!good("grad", fsccl_unit_grad(unit, 0, nullptr, &view))) return 6;
    std::memset(view.data, 0, view.count * fsccl_dtype_size(view.dtype));
    if (!good("reduce", fsccl_unit_reduce_grads(unit, nullptr, nullptr, nullptr))) return 7;
  }
  if (!good("grad", fsccl_unit_grad(unit, 0, nullptr, &view)) ||
      !good("barrier", fsccl_barrier(comm, nullptr, nullptr)))
    return 8;
  held.shard_ready = hold;
  if (!good("held reduce",
            fsccl_unit_reduce_grads(unit, self.rank == 0 ? &held : nullptr, nullptr, nullptr)) ||
      self.rank == 0)
    return 9;
  std::thread aborter([&] {
    int signal = 0;
    sigwait(&end, &signal);
    (void)fsccl_comm_abort(comm);
  });
  std::puts("waiting");
  const fsccl_status_t status = fsccl_unit_grad(unit, 0, nullptr, &view);
  tell("second grad", status);
  kill(getpid(), SIGUSR1);  // ends the wait of the aborter thread
  aborter.join();
  const bool given_back =
      fsccl_unit_destroy(unit) == FSCCL_OK && fsccl_comm_destroy(comm) != FSCCL_ERR_INVALID_HANDLE;
  return status < 0 && given_back ? 0 : 10;
}

// This says how long a process has run so far, by the clock and on a core, and how often it slept.
struct Usage {
  int64_t wall_ns, core_ns, sleeps;
};

Usage usage() {
  const auto clock_ns = [](clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec * 1'000'000'000 + now.tv_nsec;
  };
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return {clock_ns(CLOCK_MONOTONIC), clock_ns(CLOCK_PROCESS_CPUTIME_ID), used.ru_nvcsw};
}

// Rank 0 comes late to each barrier. The others print how long they waited, how much of that time
// they held a core, and how often they slept.
int late(const Child& self) {
  constexpr useconds_t kLateUs = 250'000;
  fsccl_comm_t comm = nullptr;
  if (!good("join", fsccl_comm_create(nullptr, &comm))) return 3;
  Usage sum{};
  for (int i = 0; i <= kBarriers; i++) {  // the first one to begin together
    if (self.rank == 0 && i > 0) usleep(kLateUs);
    const Usage before = usage();
    if (!good("barrier", fsccl_barrier(comm, nullptr, nullptr))) return 4;
    if (i == 0) continue;
    const Usage after = usage();
    sum.wall_ns += after.wall_ns - before.wall_ns;
    sum.core_ns += after.core_ns - before.core_ns;
    sum.sleeps += after.sleeps - before.sleeps;
  }
  std::printf("waited %lld held %lld slept %lld\n", static_cast<long long>(sum.wall_ns),
              static_cast<long long>(sum.core_ns), static_cast<long long>(sum.sleeps));
  return good("destroy", fsccl_comm_destroy(comm)) ? 0 : 5;
}

class Waits : public ::testing::Test {
 protected:
  void start(const char* role, int port, const Variables& more = {}) {
    for (int rank = 0; rank < 2; rank++)
      processes_.start(role, rank, 2, with(job(rank, 2, port), more));
    ASSERT_TRUE(processes_.wait_for_output(0, "holding", kLimitMs)) << processes_.report();
    ASSERT_TRUE(processes_.wait_for_output(1, "waiting", kLimitMs)) << processes_.report();
  }
  // Returns the output of rank 1 when it has ended well.
  std::string end_of_rank_1() {
    if (!processes_.wait_for_output(1, "second grad", kLimitMs)) return processes_.report();
    processes_.kill(0, SIGKILL);
    (void)processes_.finish(kLimitMs);
    EXPECT_EQ(processes_.exit_code(1), 0) << processes_.report();
    return processes_.output(1);
  }
  Processes processes_;
};

TEST_F(Waits, ForAGradientSlotEndWhenTheOtherRankDies) {
  start("grad", 21300);
  processes_.kill(0, SIGKILL);
  EXPECT_THAT(end_of_rank_1(), HasSubstr("second grad: -60 peer 0 "));
}

TEST_F(Waits, ForAGradientSlotEndWhenTheOtherRankLeaves) {
  start("grad", 21301);
  processes_.kill(0, SIGUSR1);
  EXPECT_THAT(end_of_rank_1(), HasSubstr("second grad: -60 peer 0 "));
}

TEST_F(Waits, ForAGradientSlotEndWhenTheOtherRankIsStopped) {
  start("grad", 21302, {{"FSCCL_TIMEOUT_MS", "3000"}, {"FSCCL_HEARTBEAT_MS", "0"}});
  processes_.kill(0, SIGSTOP);
  const std::string text = end_of_rank_1();
  EXPECT_THAT(text, HasSubstr("second grad: -63 peer 0 "));
  EXPECT_THAT(text, HasSubstr("waited 3000 ms for rank 0"));
}

TEST_F(Waits, ForAGradientSlotEndWhenSomebodyAborts) {
  start("grad", 21303);
  processes_.kill(1, SIGUSR1);
  EXPECT_THAT(end_of_rank_1(), HasSubstr("second grad: -80 "));
}

// Ranks that wait for a late one leave the cores to computations: they sleep in each barrier, a
// sleep lasts 10 ms (the first of a wait is brief), and they hold the cores for a small part of the
// time. Threads that spun would hold both cores all the time. How much a sleep costs differs by
// machine, so the test counts sleeps, and its limit of the time is loose.
TEST(Waiting, LeavesTheCoresToComputations) {
  constexpr int kRanks = 8, kCores = 2;
  constexpr int64_t kSleepNs = 10'000'000, kFewSleeps = 10;
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++)
    processes.start("late", rank, kRanks, job(rank, kRanks, 21304));
  ASSERT_TRUE(processes.finish(kLimitMs)) << processes.report();
  double share = 0;
  for (int rank = 1; rank < kRanks; rank++) {
    const std::string said = processes.output(rank);
    long long waited = 0, held = 0, slept = 0;
    const size_t at = said.find("waited ");
    ASSERT_NE(at, said.npos) << processes.report();
    ASSERT_EQ(
        std::sscanf(said.c_str() + at, "waited %lld held %lld slept %lld", &waited, &held, &slept),
        3)
        << said;
    ASSERT_GT(waited, 500'000'000) << said;
    EXPECT_GE(slept, kBarriers) << said;
    EXPECT_LE(slept, waited / kSleepNs + kBarriers * kFewSleeps) << said;
    share += static_cast<double>(held) / static_cast<double>(waited);
  }
  EXPECT_LT(share / kCores, 0.3);
}

const AddRoles roles{{"grad", grad}, {"late", late}};

}  // namespace
}  // namespace fsccl::testing::waits_tests
