// Tests failures of processes through the public header: a process is killed, leaves, forks, or
// ends badly; the others learn which rank it was, and nothing is left behind.
#include <dirent.h>
#include <fsccl/fsccl.h>
#include <fsccl/insight.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <map>
#include <set>
#include <string>

#include "multi/processes.h"
#include "multi/tell.h"

namespace fsccl::testing::failures_tests {
namespace {

constexpr int64_t kLimitMs = 60'000;

fsccl_comm_t join() {
  fsccl_comm_t comm = nullptr;
  if (fsccl_comm_create(nullptr, &comm) != FSCCL_OK) {
    tell("join", FSCCL_ERR_INTERNAL);
    exit(3);
  }
  return comm;
}

// Waits in a barrier that never completes.
int waiter(const Child&) {
  fsccl_comm_t comm = join();
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  puts("ready");
  const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
  tell("second", status);
  const fsccl_status_t destroyed = fsccl_comm_destroy(comm);
  return destroyed == FSCCL_OK && status == FSCCL_ERR_PEER_DEAD ? 0 : 5;
}

// Joins, and then makes no further call.
int sleeper(const Child&) {
  fsccl_comm_t comm = join();
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  puts("ready");
  while (true) pause();
}

// Shares its connections with a child that outlives it.
int sharer(const Child&) {
  const fsccl_comm_t comm = join();
  const long heir = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
  if (heir < 0) return 5;
  if (heir == 0) {
    while (true) pause();
  }
  printf("heir %ld\n", heir);
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  puts("ready");
  while (true) pause();
}

// Rank 0 sees how the others end, none of which destroys its communicator. They wait until all have
// completed the barrier, because the death of an early rank would end the barrier for the others.
int ender(const Child& self) {
  sigset_t go;
  sigemptyset(&go);
  sigaddset(&go, SIGUSR1);
  sigprocmask(SIG_BLOCK, &go, nullptr);
  fsccl_comm_t comm = join();
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  puts("ready");
  int signal = 0;
  if (self.rank) sigwait(&go, &signal);
  if (self.rank == 1) exit(0);
  if (self.rank == 2) exit(1);
  if (self.rank == 3) _exit(0);
  for (int rank = 1; rank < 4; rank++) {
    fsccl_peer_state_t state = FSCCL_PEER_ALIVE;
    do
      if (tell("state", fsccl_comm_peer_state(comm, rank, &state))) return 5;
    while ((state == FSCCL_PEER_ALIVE || state == FSCCL_PEER_SUSPECT) && poll(nullptr, 0, 1) == 0);
    if (state != (rank == 1 ? FSCCL_PEER_LEFT : FSCCL_PEER_DEAD)) return 5 + rank;
  }
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 9;
}

// Makes a communicator of ranks 1 to 3, one of which makes no further call.
int divider(const Child& self) {
  fsccl_comm_t comm = join(), part = nullptr;
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  puts("ready");
  const int ranks[] = {1, 2, 3};
  if (self.rank == 0) {
    const fsccl_status_t status = fsccl_barrier(comm, nullptr, nullptr);
    tell("barrier", status);
    return status == FSCCL_ERR_PEER_DEAD && fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 5;
  }
  const fsccl_status_t status = fsccl_comm_subset(comm, ranks, 3, 1, nullptr, &part);
  tell("subset", status);
  return status == FSCCL_ERR_PEER_DEAD && !part && fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 6;
}

// Makes one pool after the other, until that fails, and then ends without destroying anything.
int pool_maker(const Child&) {
  fsccl_comm_t comm = join();
  fsccl_status_t status = FSCCL_OK;
  for (int made = 0; status == FSCCL_OK; made++) {
    fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
    memory.limit_bytes = 64 << 20;
    fsccl_pool_t pool = nullptr;
    status = fsccl_pool_create(comm, &memory, &pool);
    if (status == FSCCL_OK) status = fsccl_pool_destroy(pool);
    if (made == 3) puts("ready");
  }
  tell("pool", status);
  exit(3);
}

// Exits without destroying the pool, the unit and the memory that it uses.
int careless(const Child& self) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_param_t param = FSCCL_PARAM_INIT;
  param.dims = 1, param.shape[0] = 1 << 20;
  fsccl_unit_t unit = nullptr;
  config.shard_comm = join();
  if (tell("pool", fsccl_pool_create(config.shard_comm, &memory, &config.pool))) return 4;
  if (tell("unit", fsccl_unit_create(&config, &param, 1, &unit))) return 5;
  if (tell("unshard", fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr))) return 6;
  if (self.rank % 2) _exit(0);
  exit(0);
}

// Runs backward through a unit by parameter. Rank 1 ends in the middle of it; the others get an
// error, and can give all back.
int backward(const Child& self) {
  fsccl_unit_config_t config = FSCCL_UNIT_CONFIG_INIT;
  fsccl_pool_config_t memory = FSCCL_POOL_CONFIG_INIT;
  fsccl_param_t params[] = {FSCCL_PARAM_INIT, FSCCL_PARAM_INIT, FSCCL_PARAM_INIT};
  for (fsccl_param_t& param : params) param.dims = 1, param.shape[0] = 1 << 16;
  fsccl_unit_t unit = nullptr;
  fsccl_work_t work = nullptr;
  fsccl_view_t view;
  config.shard_comm = join();
  config.by_parameter = 1;
  if (tell("pool", fsccl_pool_create(config.shard_comm, &memory, &config.pool))) return 4;
  if (tell("unit", fsccl_unit_create(&config, params, 3, &unit))) return 5;
  if (tell("unshard", fsccl_unit_unshard(unit, FSCCL_UNSHARD_READ, nullptr, nullptr))) return 6;
  fsccl_status_t status = FSCCL_OK;
  for (size_t i = 3; i-- > 0 && status >= 0;) {
    if (tell("grad", fsccl_unit_grad(unit, i, nullptr, &view))) return 7;
    if (self.rank == 1 && i == 1) raise(SIGKILL);
    if (tell("release", fsccl_unit_release(unit, i, nullptr))) return 8;
    fsccl_reduce_config_t reduction = FSCCL_REDUCE_CONFIG_INIT;
    reduction.first = i, reduction.count = 1;
    status = fsccl_unit_reduce_grads(unit, &reduction, nullptr, &work);
    if (work) status = fsccl_work_wait(work, -1), fsccl_work_release(work), work = nullptr;
  }
  tell("reduce", status);
  if (status != FSCCL_ERR_PEER_DEAD || tell("destroy", fsccl_unit_destroy(unit))) return 9;
  return tell("empty", fsccl_pool_destroy(config.pool)) || fsccl_comm_destroy(config.shard_comm)
             ? 10
             : 0;
}

// Forks after joining. The library refuses the child's calls, and the parent goes on.
int forker(const Child&) {
  fsccl_comm_t comm = join();
  if (tell("first", fsccl_barrier(comm, nullptr, nullptr))) return 4;
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = fsccl_barrier(comm, nullptr, nullptr) == FSCCL_ERR_FORKED &&
                         fsccl_comm_destroy(comm) == FSCCL_ERR_FORKED;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) return 5;
  if (tell("second", fsccl_barrier(comm, nullptr, nullptr))) return 6;
  return fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 7;
}

// Has a setting that differs from the others'.
int stranger(const Child&) {
  fsccl_comm_t comm = nullptr;
  return tell("create", fsccl_comm_create(nullptr, &comm)) && !comm ? 0 : 4;
}

// Runs as a user who may start no thread. Root may always, so the process becomes another user.
int threadless(const Child&) {
  fsccl_comm_config_t config = FSCCL_COMM_CONFIG_INIT;
  fsccl_unique_id_t id;
  if (fsccl_unique_id_create(&id) != FSCCL_OK) return 3;
  config.unique_id = &id;
  config.rank = 0;
  config.ranks = 1;
  config.nonblocking = 1;
  rlimit before;
  getrlimit(RLIMIT_NPROC, &before);
  const rlimit none = {1, before.rlim_max};
  if (setrlimit(RLIMIT_NPROC, &none) != 0 || (getuid() == 0 && setuid(54321) != 0)) return 4;
  prctl(PR_SET_DUMPABLE, 1);  // setuid() cleared it, and a leak checker needs it at the end
  fsccl_comm_t comm = nullptr;
  tell("create", fsccl_comm_create(&config, &comm));
  if (comm) return 5;
  setrlimit(RLIMIT_NPROC, &before);
  tell("again", fsccl_comm_create(&config, &comm));
  return comm && fsccl_comm_destroy(comm) == FSCCL_OK ? 0 : 6;
}

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  if (DIR* folder = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(folder))
      if (std::string(entry->d_name).find("fsccl") != std::string::npos)
        names.insert(entry->d_name);
    closedir(folder);
  }
  return names;
}

TEST(Failures, AKilledRankIsNamed) {
  for (const int victim : {0, 2, 3}) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++)
      processes.start(rank == victim ? "sleeper" : "waiter", rank, 4, job(rank, 4, 20000 + victim));
    for (int rank = 0; rank < 4; rank++)
      ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
    processes.kill(victim, SIGKILL);
    processes.finish(kLimitMs);
    for (int rank = 0; rank < 4; rank++) {
      if (rank == victim) continue;
      EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("peer " + std::to_string(victim)))
          << processes.report();
    }
  }
}

// A child of the killed rank keeps the rank's connections open, and the rank's silence alone would
// be noticed late. The neighbours see that its thread has ended.
TEST(Failures, AKilledRankIsKnownBeforeItsConnectionsEnd) {
  const long none = syscall(SYS_pidfd_open, gettid(), O_EXCL);  // PIDFD_THREAD
  if (none < 0) GTEST_SKIP() << "the end of a thread can be seen from Linux 6.9 on";
  close(static_cast<int>(none));
  Processes processes;
  for (int rank = 0; rank < 2; rank++)
    processes.start(rank ? "sharer" : "waiter", rank, 2,
                    with(job(rank, 2, 20400), {{"FSCCL_SUSPECT_MS", "100000"}}));
  for (int rank = 0; rank < 2; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
  poll(nullptr, 0, 300);  // after a few heartbeats neighbours know each other's threads
  processes.kill(1, SIGKILL);
  const bool known = processes.wait_for_output(0, "peer 1", 5'000);
  const std::string& told = processes.output(1);
  const pid_t heir = std::atoi(told.c_str() + told.find("heir ") + 5);
  ASSERT_GT(heir, 1) << told;
  kill(heir, SIGKILL);
  processes.finish(kLimitMs);
  EXPECT_TRUE(known) << processes.report();
}

TEST(Failures, AKilledRankEndsTheMakingOfASubset) {
  for (const int victim : {1, 2}) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++)
      processes.start(rank == victim ? "sleeper" : "divider", rank, 4,
                      job(rank, 4, 20500 + victim));
    for (int rank = 0; rank < 4; rank++)
      ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
    processes.kill(victim, SIGKILL);
    processes.finish(kLimitMs / 3);  // well before the deadline of the communicator
    for (int rank = 0; rank < 4; rank++) {
      if (rank == victim) continue;
      EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("peer " + std::to_string(victim)))
          << processes.report();
    }
  }
}

// Every survivor names the killed rank, by its number in the job and not by its number on its host.
// No survivor names a rank that ended only because the killed one had died.
TEST(Failures, WhoDiesWhilePoolsAreMadeIsNamedOnAllHosts) {
  for (int round = 0; round < 12; round++) {
    Processes processes;
    const int victim = round % 2 ? 4 : 2;
    for (int rank = 0; rank < 5; rank++) {
      const Variables host = {{"FSCCL_HOST_ID", rank < 3 ? "first" : "second"},
                              {"FSCCL_INSECURE", "1"}};
      processes.start("pool_maker", rank, 5, with(job(rank, 5, 20900 + round), host));
    }
    ASSERT_TRUE(processes.wait_for_output(victim, "ready", kLimitMs)) << processes.report();
    processes.kill(victim, SIGKILL);
    processes.finish(kLimitMs / 3);
    for (int rank = 0; rank < 5; rank++) {
      if (rank == victim) continue;
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("peer " + std::to_string(victim)))
          << processes.report();
    }
  }
}

TEST(Failures, ProcessesThatEndBadlyLeaveNothing) {
  const std::set<std::string> before = shared_memory_files();
  for (int round = 0; round < 3; round++) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++)
      processes.start("careless", rank, 4, job(rank, 4, 20100 + round));
    processes.finish(kLimitMs);
    for (int rank = 0; rank < 4; rank++)
      EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("unit: 0")) << processes.report();
  }
  EXPECT_EQ(shared_memory_files(), before);
}

TEST(Failures, WhoEndsWellHasLeft) {
  int port = 20800;
  for (const std::string transport : {"shm", "tcp"}) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++)
      processes.start("ender", rank, 4, with(job(rank, 4, port), {{"FSCCL_TRANSPORT", transport}}));
    for (int rank = 0; rank < 4; rank++)
      ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
    for (int rank = 1; rank < 4; rank++) processes.kill(rank, SIGUSR1);
    processes.finish(kLimitMs);
    EXPECT_EQ(processes.exit_code(0), 0) << transport << processes.report();
    port++;
  }
}

TEST(Failures, ARankThatDiesInTheMiddleOfABackward) {
  Processes processes;
  for (int rank = 0; rank < 3; rank++) processes.start("backward", rank, 3, job(rank, 3, 20700));
  processes.finish(kLimitMs);
  for (const int rank : {0, 2}) EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
}

TEST(Failures, AllKilledLeaveNothing) {
  const std::set<std::string> before = shared_memory_files();
  Processes processes;
  for (int rank = 0; rank < 4; rank++) processes.start("sleeper", rank, 4, job(rank, 4, 20200));
  for (int rank = 0; rank < 4; rank++)
    ASSERT_TRUE(processes.wait_for_output(rank, "ready", kLimitMs)) << processes.report();
  for (int rank = 0; rank < 4; rank++) processes.kill(rank, SIGKILL);
  processes.finish(kLimitMs);
  EXPECT_EQ(shared_memory_files(), before);
}

// Few ranks all exchange their settings directly. Many ranks over a transport that sends messages
// first exchange them in log steps.
TEST(Failures, SettingsThatMustBeAlikeAreCompared) {
  int port = 20400;
  for (const auto& [transport, ranks] : std::map<std::string, int>{{"shm", 3}, {"tcp", 11}})
    for (const auto& [name, value] : Variables{{"FSCCL_EAGER_BYTES", "4K"},
                                               {"FSCCL_SINGLE_COPY", "on"},
                                               {"FSCCL_SLOT_BYTES", "128K"},
                                               {"FSCCL_CHECKSUM", "1"},
                                               {"FSCCL_HEARTBEAT_MS", "250"}}) {
      Processes processes;
      for (int rank = 0; rank < ranks; rank++) {
        const Variables variables = with(job(rank, ranks, port), {{"FSCCL_TRANSPORT", transport}});
        processes.start("stranger", rank, ranks,
                        rank == 1 ? with(variables, {{name, value}}) : variables);
      }
      EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
      for (int rank = 0; rank < ranks; rank++) {
        EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
        EXPECT_THAT(processes.output(rank), ::testing::HasSubstr(name)) << processes.report();
        EXPECT_THAT(processes.output(rank), ::testing::HasSubstr("alike on all ranks"))
            << processes.report();
      }
      port++;
    }
}

// One rank fails after all have joined. The others do not wait for it until the deadline.
TEST(Failures, ARankThatCannotGoOnIsNotWaitedFor) {
  int port = 20440;
  for (const char* const transport : {"shm", "tcp"}) {
    Processes processes;
    for (int rank = 0; rank < 4; rank++) {
      const Variables variables = with(job(rank, 4, port), {{"FSCCL_TRANSPORT", transport}});
      processes.start(
          "stranger", rank, 4,
          rank == 2 ? with(variables, {{"FSCCL_TRACE_DIR", "/proc/no/folder"}}) : variables);
    }
    EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
    for (int rank = 0; rank < 4; rank++)
      EXPECT_THAT(processes.output(rank),
                  ::testing::HasSubstr(rank == 2 ? "FSCCL_TRACE_DIR" : "rank 2 "))
          << processes.report();
    port++;
  }
}

TEST(Failures, AForkedChildIsRefused) {
  Processes processes;
  for (int rank = 0; rank < 2; rank++) processes.start("forker", rank, 2, job(rank, 2, 20300));
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
}

TEST(Failures, AThreadThatTheSystemRefusesIsALimit) {
  Processes processes;
  processes.start("threadless", 0, 1);
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  EXPECT_THAT(processes.output(0),
              ::testing::HasSubstr("create: " + std::to_string(FSCCL_ERR_LIMIT)))
      << processes.report();
  EXPECT_THAT(processes.output(0), ::testing::HasSubstr("ulimit -u")) << processes.report();
}

const AddRoles roles{{"waiter", waiter},     {"sleeper", sleeper},      {"sharer", sharer},
                     {"ender", ender},       {"divider", divider},      {"pool_maker", pool_maker},
                     {"careless", careless}, {"backward", backward},    {"forker", forker},
                     {"stranger", stranger}, {"threadless", threadless}};

}  // namespace
}  // namespace fsccl::testing::failures_tests
