// Tests processes that are stopped, continued, killed or busy, and what fsccl_comm_peer_state() and
// the errors of the others say about them.
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <ctime>
#include <functional>
#include <set>
#include <string>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::silence_tests {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
constexpr int64_t kLimitMs = 60'000;
constexpr int64_t kBusyMs = 1'500;  // several times the silence that makes a rank a suspect

fsccl_comm_t join() {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go, nullptr);
  fsccl_comm_t comm = nullptr;
  if (fsccl_comm_create(nullptr, &comm) != FSCCL_OK) {
    tell("join", last_error().code);
    exit(3);
  }
  if (fsccl_barrier(comm, nullptr, nullptr) != FSCCL_OK) exit(3);
  puts("ready");
  return comm;
}

// Prints what the metrics say about suspects.
void print_suspects() {
  const auto print = [](void*, const char* text, size_t) {
    for (const char* line = text; (line = strstr(line, "\nfsccl_peers{")) != nullptr;) {
      line++;
      const std::string_view whole(line, strcspn(line, "\n"));
      if (whole.find("state=\"suspect\"") == whole.npos) continue;
      printf("suspects: %s\n", std::string(whole.substr(whole.rfind(' ') + 1)).c_str());
    }
  };
  if (fsccl_metrics(print, nullptr) != FSCCL_OK) exit(6);
}

// Prints each change of the others' states until the test says that it is enough.
void watch(fsccl_comm_t comm, int ranks) {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  const timespec pause{0, 2'000'000};
  std::vector<fsccl_peer_state_t> states(static_cast<size_t>(ranks), FSCCL_PEER_ALIVE);
  do {
    const std::vector<fsccl_peer_state_t> before = states;
    for (int rank = 0; rank < ranks; ++rank) {
      fsccl_peer_state_t state;
      if (fsccl_comm_peer_state(comm, rank, &state) != FSCCL_OK) exit(5);
      if (std::exchange(states[static_cast<size_t>(rank)], state) != state)
        printf("rank %d is %d\n", rank, state);
    }
    if (states != before) print_suspects();
  } while (sigtimedwait(&go, nullptr, &pause) != SIGUSR1);
}

// Watches, then meets the others again.
int watcher(const Child& self) {
  fsccl_comm_t comm = join();
  watch(comm, self.ranks);
  const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  tell("barrier", status);
  fsccl_comm_destroy(comm);
  return status == FSCCL_OK ? 0 : 4;
}

// Watches to the end.
int observer(const Child& self) {
  fsccl_comm_t comm = join();
  watch(comm, self.ranks);
  return 0;
}

// Leaves when the test says so.
int leaver(const Child&) {
  fsccl_comm_t comm = join();
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  int signal = 0;
  sigwait(&go, &signal);
  return fsccl_comm_destroy(comm) == FSCCL_OK && pause() ? 1 : 0;
}

// Waits in a barrier that does not complete.
int waiter(const Child&) {
  fsccl_comm_t comm = join();
  tell("barrier", fsccl_barrier(comm, nullptr, nullptr));
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 4;
}

// Joins the barrier only when the test says so. The barrier of the others may be complete then,
// because they all had come.
int late(const Child& self) {
  fsccl_comm_t comm = join();
  watch(comm, self.ranks);
  fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  if (status == FSCCL_OK) status = fsccl_barrier(comm, nullptr, nullptr);
  tell("barrier", status);
  return 0;
}

// Computes, and calls nothing meanwhile.
int busy(const Child&) {
  fsccl_comm_t comm = join();
  timespec time;
  const auto now_ms = [&] {
    return clock_gettime(CLOCK_MONOTONIC, &time), time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  volatile uint64_t sum = 0;
  for (const int64_t end = now_ms() + kBusyMs; now_ms() < end;)
    for (int i = 0; i < 100'000; ++i) sum = sum + static_cast<uint64_t>(i);
  const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  tell("barrier", status);
  // Ranks that are still in the barrier may take a rank for dead that ends without this call.
  fsccl_comm_destroy(comm);
  return status == FSCCL_OK ? 0 : 4;
}

// Shrinks to the ranks that are left when the test says so, and watches.
int survivor(const Child& self) {
  fsccl_comm_t comm = join(), rest = nullptr;
  watch(comm, self.ranks);
  tell("shrink", fsccl_comm_shrink(comm, nullptr, &rest));
  watch(comm, self.ranks);
  return 0;
}

class Silence : public ::testing::Test {
 protected:
  void start(int ranks, int port, const std::function<const char*(int rank)>& role,
             const Variables& more = {}) {
    ranks_ = ranks;
    if (std::getenv("FSCCL_NETWORK")) port -= 5000;  // another run of this program, at once
    for (int rank = 0; rank < ranks; ++rank) {
      Variables variables = job(rank, ranks, port);
      for (const auto& [name, value] : more) {
        std::erase_if(variables, [&, &key = name](const auto& one) { return one.first == key; });
        variables.emplace_back(name, value);
      }
      if (hosts_) {
        variables.emplace_back("FSCCL_HOST_ID", "host " + std::to_string(rank));
        variables.emplace_back("FSCCL_INSECURE", "1");
        std::erase_if(variables, [](const auto& one) {
          return one.first == "LOCAL_WORLD_SIZE" || one.first == "LOCAL_RANK";
        });
      }
      processes.start(role(rank), rank, ranks, variables);
    }
    for (int rank = 0; rank < ranks; ++rank)
      ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
  }
  void signal(const std::set<int>& to, int number) {
    for (const int rank : to) processes.kill(rank, number);
  }
  std::set<int> all_but(const std::set<int>& some) const {
    std::set<int> others;
    for (int rank = 0; rank < ranks_; ++rank)
      if (!some.contains(rank)) others.insert(rank);
    return others;
  }
  void expect_seen(const std::set<int>& by, const std::set<int>& of, fsccl_peer_state_t state) {
    for (const int rank : by)
      for (const int other : of) {
        const std::string line = "rank " + std::to_string(other) + " is " + std::to_string(state);
        ASSERT_TRUE(processes.wait_for_output(rank, line, kLimitMs))
            << "rank " << rank << ": " << line << "\n"
            << processes.report();
      }
  }
  // Stops some of twelve ranks, which is more than a rank of the tree has children.
  void stop_and_continue(const std::set<int>& stopped, int port) {
    start(12, port, [](int) { return "watcher"; });
    const std::set<int> others = all_but(stopped);
    signal(stopped, SIGSTOP);
    expect_seen(others, stopped, FSCCL_PEER_SUSPECT);
    signal(stopped, SIGCONT);
    expect_seen(others, stopped, FSCCL_PEER_ALIVE);
    signal(all_but({}), SIGUSR1);
    EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
    for (const int rank : others)
      for (const int other : others)
        EXPECT_THAT(processes.output(rank),
                    Not(HasSubstr("rank " + std::to_string(other) + " is 1")))
            << processes.report();
  }
  int ranks_ = 0;
  bool hosts_ = false;  // each rank is on a host of its own
  Processes processes;
};

TEST_F(Silence, AStoppedRankIsASuspectUntilItGoesOn) { stop_and_continue({5}, 21000); }
TEST_F(Silence, SoIsTheOneWhereTheRanksMeet) { stop_and_continue({0}, 21001); }
TEST_F(Silence, SoAreManyAtOnce) { stop_and_continue({0, 1, 2, 3, 4, 5, 6, 7, 8}, 21002); }

TEST_F(Silence, AStoppedRankIsDeadWhenTheSettingsSaySo) {
  start(4, 21010, [](int rank) { return rank == 2 ? "silence_late" : "silence_waiter"; },
        {{"FSCCL_DEAD_MS", "900"}});
  signal({2}, SIGSTOP);
  for (const int rank : {0, 1, 3}) {
    ASSERT_TRUE(processes.wait_for_output(rank, "barrier: -", kLimitMs)) << processes.report();
    EXPECT_THAT(processes.output(rank),
                HasSubstr("barrier: " + std::to_string(FSCCL_ERR_PEER_DEAD) + " peer 2"))
        << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("rank 2")) << processes.report();
  }
  signal({2}, SIGCONT);  // rank 2 learns that the others took it for dead
  signal({2}, SIGUSR1);
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  EXPECT_THAT(processes.output(2), HasSubstr("barrier: " + std::to_string(FSCCL_ERR_PEER_DEAD)))
      << processes.report();
}

TEST_F(Silence, ATimeoutTellsOfASuspect) {
  start(3, 21020, [](int rank) { return rank == 1 ? "silence_late" : "silence_waiter"; },
        {{"FSCCL_TIMEOUT_MS", "3000"}});
  signal({1}, SIGSTOP);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(processes.wait_for_output(rank, "barrier: -", kLimitMs)) << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("barrier: " + std::to_string(FSCCL_ERR_TIMEOUT)))
        << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("1 (suspect: silent for ")) << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("its process is stopped")) << processes.report();
  }
}

TEST_F(Silence, NobodyIsASuspectWithoutHeartbeats) {
  start(3, 21030, [](int rank) { return rank == 1 ? "silence_late" : "silence_waiter"; },
        {{"FSCCL_TIMEOUT_MS", "3000"}, {"FSCCL_HEARTBEAT_MS", "0"}});
  signal({1}, SIGSTOP);
  for (const int rank : {0, 2}) {
    ASSERT_TRUE(processes.wait_for_output(rank, "barrier: -", kLimitMs)) << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("barrier: " + std::to_string(FSCCL_ERR_TIMEOUT)))
        << processes.report();
    EXPECT_THAT(processes.output(rank), Not(HasSubstr("silent"))) << processes.report();
  }
}

TEST_F(Silence, WhoDiedAndWhoHasLeft) {
  start(4, 21040, [](int rank) { return rank == 1 ? "leaver" : "observer"; });
  signal({1}, SIGUSR1);
  expect_seen({0, 2, 3}, {1}, FSCCL_PEER_LEFT);
  signal({3}, SIGKILL);
  expect_seen({0, 2}, {3}, FSCCL_PEER_DEAD);
}

TEST_F(Silence, TheMetricsCountASuspect) {
  start(2, 21045, [](int) { return "observer"; });
  signal({1}, SIGSTOP);
  ASSERT_TRUE(processes.wait_for_output(0, "suspects: 1", kLimitMs)) << processes.report();
  signal({1}, SIGCONT);
  ASSERT_TRUE(processes.wait_for_output(0, "suspects: 0", kLimitMs)) << processes.report();
}

TEST_F(Silence, WhoComputesIsNoSuspect) {
  start(3, 21050, [](int rank) { return rank == 1 ? "busy" : "watcher"; });
  signal({0, 2}, SIGUSR1);
  processes.finish(kLimitMs);
  for (const int rank : {0, 1, 2}) EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  for (const int rank : {0, 2})
    EXPECT_THAT(processes.output(rank), Not(HasSubstr("rank 1 is"))) << processes.report();
}

// One of three hosts is lost. The two that are left had a link of the tree, or were linked through
// the lost host only. In the second case they make a new link.
class SilenceBehind : public Silence, public ::testing::WithParamInterface<int> {};

TEST_P(SilenceBehind, ALostRankIsWatchedOverTheLinkInItsPlace) {
  const int lost = GetParam();
  hosts_ = true;
  start(3, 21070 + lost, [](int) { return "silence_survivor"; });
  signal({lost}, SIGKILL);
  const std::set<int> left = all_but({lost});
  expect_seen(left, {lost}, FSCCL_PEER_DEAD);
  signal(left, SIGUSR1);
  for (const int rank : left)
    ASSERT_TRUE(processes.wait_for_output(rank, "shrink: 0", kLimitMs)) << processes.report();
  for (const int stopped : left) {
    signal({stopped}, SIGSTOP);
    expect_seen(all_but({lost, stopped}), {stopped}, FSCCL_PEER_SUSPECT);
    signal({stopped}, SIGCONT);
    expect_seen(all_but({lost, stopped}), {stopped}, FSCCL_PEER_ALIVE);
  }
}

INSTANTIATE_TEST_SUITE_P(Each, SilenceBehind, ::testing::Values(0, 1, 2));

TEST_F(Silence, HeartbeatsAreSetAlike) {
  for (int rank = 0; rank < 3; ++rank) {
    Variables variables = job(rank, 3, 21060);
    if (rank == 1) variables.emplace_back("FSCCL_HEARTBEAT_MS", "50");
    processes.start("observer", rank, 3, variables);
  }
  processes.finish(kLimitMs);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(processes.exit_code(rank), 3) << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("have FSCCL_HEARTBEAT_MS set differently"))
        << processes.report();
  }
}

const AddRoles roles{{"watcher", watcher},          {"observer", observer}, {"leaver", leaver},
                     {"silence_waiter", waiter},    {"silence_late", late}, {"busy", busy},
                     {"silence_survivor", survivor}};

}  // namespace
}  // namespace fsccl::testing::silence_tests
