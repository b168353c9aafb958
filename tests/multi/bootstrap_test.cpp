// Tests the bootstrap with real processes: launch environments, secrets, and deaths.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <new>
#include <thread>

#include "base/reactor.h"
#include "base/socket.h"
#include "bootstrap/job.h"
#include "multi/processes.h"

namespace fsccl {
namespace {

using testing::Child;
using ::testing::HasSubstr;
using testing::Processes;
using testing::Variables;

constexpr int64_t kPatienceMs = 40'000;  // the deadline of everything that must succeed

// -------------------------------------------------------------------------------------------------
// roles

// Returns the deadline of this rank, which a test can shorten to see it pass.
Deadline own_deadline() {
  const char* const text = std::getenv("TEST_TIMEOUT_MS");
  return Deadline::in_ms(text ? std::atoi(text) : kPatienceMs);
}

Result<std::shared_ptr<Job>> join_from_variables(const Child& child) {
  JoinRequest request;
  fsccl_unique_id_t id;
  if (const char* hex = std::getenv("TEST_ID"); hex != nullptr) {
    for (size_t i = 0; i < sizeof(id.bytes); ++i) {
      unsigned value = 0;
      (void)!std::sscanf(hex + 2 * i, "%2x", &value);
      id.bytes[i] = static_cast<unsigned char>(value);
    }
    request.unique_id = &id;
    request.rank = child.rank;
    request.ranks = child.ranks;
  }
  request.deadline = own_deadline();
  return Job::join(request);
}

int failed(const Status& status) {
  std::printf("error %d: %s\n", status.code(), status.text().c_str());
  return 1;
}

// Joins as often as TEST_JOBS says, exchanges ranks and pids, and checks them.
int exchange(const Child& child) {
  const char* const jobs = std::getenv("TEST_JOBS");
  for (int i = 0; i < (jobs ? std::atoi(jobs) : 1); ++i) {
    Result<std::shared_ptr<Job>> joined = join_from_variables(child);
    if (!joined.ok()) return failed(joined.status());
    Job& job = *joined.value();
    if (job.rank() != child.rank || job.size() != child.ranks) return 10;
    const int32_t mine = getpid();
    std::vector<int32_t> all(static_cast<size_t>(job.size()));
    const Status status = job.all_gather(&mine, all.data(), sizeof(mine), own_deadline());
    if (!status.ok()) return failed(status);
    for (int rank = 0; rank < job.size(); ++rank)
      if (all[static_cast<size_t>(rank)] != job.member(rank).pid) return 11;
  }
  return 0;
}

// Joins, says so, and waits for the loss of one rank.
int wait_for_loss(const Child& child) {
  Result<std::shared_ptr<Job>> joined = join_from_variables(child);
  if (!joined.ok()) return failed(joined.status());
  std::mutex mutex;
  std::condition_variable changed;
  int losses = 0, last = -1;
  bool has_left = false;
  joined.value()->on_loss([&](int rank, bool left) {
    const std::lock_guard lock(mutex);
    ++losses;
    last = rank;
    has_left = left;
    changed.notify_all();
  });
  std::printf("joined\n");
  std::unique_lock lock(mutex);
  if (!changed.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&] { return losses > 0; }))
    return 12;
  std::printf("lost %d %s\n", last, has_left ? "left" : "dead");
  lock.unlock();
  const Status status = joined.value()->barrier(own_deadline());
  if (status.ok()) return 13;
  std::printf("barrier: %d %s\n", status.code(), status.text().c_str());
  for (;;) pause();  // the test kills this rank; the others must not see it end before that
}

// Joins, and leaves while the handler that hears of a loss still runs. The handler's objects may
// end after leave(), so the handler must have returned by then. The hook keeps the service thread,
// as the hooks of communicators do: leave() would otherwise wait for the end of that thread.
int leave_while_told(const Child& child) {
  Reactor::instance().add_hook([] { return int64_t{-1}; });
  Result<std::shared_ptr<Job>> joined = join_from_variables(child);
  if (!joined.ok()) return failed(joined.status());
  std::atomic<bool> begun{false}, ended{false};
  joined.value()->on_loss([&](int, bool) {
    begun = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    ended = true;
  });
  std::printf("joined\n");
  while (!begun) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  joined.value()->leave();
  return ended ? 0 : 14;
}

// Joins, and hears of a loss with a handler that finds no memory at first.
int hear_without_memory(const Child& child) {
  Result<std::shared_ptr<Job>> joined = join_from_variables(child);
  if (!joined.ok()) return failed(joined.status());
  std::atomic<int> calls{0};
  joined.value()->on_loss([&](int, bool) {
    if (calls++ == 0) throw std::bad_alloc();
  });
  std::printf("joined\n");
  for (int ms = 0; calls < 2 && ms < 5000; ms++)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  joined.value()->leave();
  return calls == 2 ? 0 : 15;
}

// -------------------------------------------------------------------------------------------------
// helpers

// Gives each test its own name for the job, so that its processes do not meet those of another
// test. The port lies below those that systems give to connections. Ranks meet at the port after
// it, so ports are two apart.
std::string unique_port() {
  static int next = 0;
  return std::to_string(22000 + (getpid() * 16 + next++) % 5000 * 2);
}

Variables torchrun(int rank, int ranks, const std::string& port) {
  return {{"RANK", std::to_string(rank)},       {"WORLD_SIZE", std::to_string(ranks)},
          {"LOCAL_RANK", std::to_string(rank)}, {"LOCAL_WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", "127.0.0.1"},         {"MASTER_PORT", port},
          {"TORCHELASTIC_RUN_ID", "test"}};
}

// Returns variables by which every rank seems to be on a host of its own.
Variables own_host(int rank, int ranks, const std::string& port) {
  Variables variables = torchrun(rank, ranks, port);
  variables[3] = {"LOCAL_WORLD_SIZE", "1"};
  variables.push_back({"FSCCL_HOST_ID", "host " + std::to_string(rank)});
  return variables;
}

// Returns the variables that a script sets for each rank if no launcher starts them.
Variables by_hand(int rank, int ranks, const std::string& port, const std::string& address) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(ranks)},
          {"MASTER_ADDR", address},
          {"MASTER_PORT", port}};
}

// Returns the words by which a user may name this host, as far as this system knows them.
std::vector<std::string> names_of_this_host() {
  std::vector<std::string> names = {"localhost", "127.0.0.1",        "LOCALHOST",
                                    "127.1",     "0.0.0.0",          "::1",
                                    "[::1]",     "::ffff:127.0.0.1", "::"};
  char own[256] = {};
  gethostname(own, sizeof(own) - 1);
  names.push_back(own);
  for (const IpAddress& ip : local_ips("")) {
    const std::string address = describe(tcp_address(ip, 1));
    names.push_back(address.substr(0, address.rfind(':')));
  }
  std::erase_if(names, [](const std::string& name) { return !resolve(name, 1).ok(); });
  return names;
}

std::string hexadecimal(const fsccl_unique_id_t& id) {
  std::string text;
  char pair[3];
  for (const unsigned char byte : id.bytes) {
    std::snprintf(pair, sizeof(pair), "%02x", byte);
    text += pair;
  }
  return text;
}

// -------------------------------------------------------------------------------------------------
// tests

class ById : public ::testing::TestWithParam<int> {};

TEST_P(ById, ProcessesJoinAndExchange) {
  fsccl_unique_id_t id;
  ASSERT_TRUE(create_unique_id(&id).ok());
  Processes processes;
  for (int rank = 0; rank < GetParam(); ++rank)
    processes.start("exchange", rank, GetParam(), {{"TEST_ID", hexadecimal(id)}});
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

// A rank that does not understand its environment does not join, and the others need not wait for
// it.
TEST(Settings, OneRanksWrongVariableIsTheErrorOfAll) {
  fsccl_unique_id_t id;
  ASSERT_TRUE(create_unique_id(&id).ok());
  Processes processes;
  for (int rank = 0; rank < 3; ++rank) {
    Variables variables = {{"TEST_ID", hexadecimal(id)}};
    if (rank == 1) variables.push_back({"FSCCL_SPIN_US", "a while"});
    processes.start("exchange", rank, 3, variables);
  }
  EXPECT_FALSE(processes.finish(kPatienceMs));
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(processes.exit_code(rank), 1) << processes.report();
    EXPECT_THAT(processes.output(rank), HasSubstr("FSCCL_SPIN_US")) << processes.report();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, ById, ::testing::Values(2, 5, 33));

TEST(Environment, TorchrunTwoJobsAfterEachOther) {
  const std::string port = unique_port();
  Processes processes;
  for (int rank = 0; rank < 10; ++rank) {
    Variables variables = torchrun(rank, 10, port);
    variables.push_back({"TEST_JOBS", "2"});
    processes.start("exchange", rank, 10, variables);
  }
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

TEST(Environment, OpenMpi) {
  const std::string name = "prterun-test-" + unique_port() + "@1";
  Processes processes;
  for (int rank = 0; rank < 6; ++rank) {
    processes.start("exchange", rank, 6,
                    {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
                     {"OMPI_COMM_WORLD_SIZE", "6"},
                     {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(rank)},
                     {"OMPI_COMM_WORLD_LOCAL_SIZE", "6"},
                     {"PMIX_NAMESPACE", name}});
  }
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

TEST(Environment, OneRankAlone) {
  Processes processes;
  processes.start("exchange", 0, 1, {{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

TEST(Environment, RankZeroComesLast) {
  const std::string port = unique_port();
  Processes processes;
  processes.start("exchange", 1, 2, torchrun(1, 2, port));
  processes.start("exchange", 0, 2, torchrun(0, 2, port));
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

// There are two jobs of one name, or one job in which two processes have rank 0. The process that
// came second sees that the name is taken, and by which process, and all ranks hear of it long
// before the deadline.
TEST(Environment, AnotherJobOfTheSameNameIsAnError) {
  const std::string port = unique_port();
  Processes processes;
  for (int rank : {0, 0, 2}) processes.start("exchange", rank, 3, torchrun(rank, 3, port));
  EXPECT_FALSE(processes.finish(kPatienceMs / 2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(processes.exit_code(i), 1) << processes.report();
    for (const std::string& words :
         {std::string("MASTER_PORT"), std::string("two processes of this one have rank 0"),
          "process " + std::to_string(processes.pid(0)),
          "process " + std::to_string(processes.pid(1))})
      EXPECT_THAT(processes.output(i), HasSubstr(words)) << processes.report();
  }
}

TEST(Environment, ARankGivenTwiceIsNamed) {
  const std::string port = unique_port();
  Processes processes;
  for (int rank : {0, 1, 1}) processes.start("exchange", rank, 4, torchrun(rank, 4, port));
  EXPECT_FALSE(processes.finish(kPatienceMs / 2));
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(processes.output(i), HasSubstr("rank 1 joined twice")) << processes.report();
}

TEST(Environment, RanksMayNameTheHostOfRankZeroDifferently) {
  const std::vector<std::string> names = names_of_this_host();
  const auto count = static_cast<int>(names.size());
  ASSERT_GE(count, 4);
  for (const bool insecure : {false, true}) {
    // Each name is rank 0's MASTER_ADDR in one turn.
    for (int turn = 0; turn < count; turn += insecure ? 2 : 1) {
      const std::string port = unique_port();
      Processes processes;
      for (int rank = 0; rank < count; ++rank) {
        Variables variables =
            by_hand(rank, count, port, names[static_cast<size_t>((rank + turn) % count)]);
        variables.push_back({"FSCCL_INSECURE", insecure ? "1" : "0"});
        processes.start("exchange", rank, count, variables);
      }
      EXPECT_TRUE(processes.finish(kPatienceMs))
          << "rank 0 says " << names[static_cast<size_t>(turn)] << processes.report();
    }
  }
}

TEST(Environment, JobsWithOtherPortsDoNotMix) {
  Processes processes;
  for (int job = 0; job < 3; ++job) {
    const std::string port = unique_port();
    for (int rank = 0; rank < 3; ++rank)
      processes.start("exchange", rank, 3,
                      by_hand(rank, 3, port, rank == job ? "localhost" : "127.0.0.1"));
  }
  EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
}

// A rank that takes the others for ranks of other hosts does not join without a secret, and the
// others need not wait for it.
TEST(Environment, AWrongLocalWorldSizeIsNamed) {
  for (const int wrong : {0, 2}) {
    const std::string port = unique_port();
    Processes processes;
    for (int rank = 0; rank < 3; ++rank)
      processes.start("exchange", rank, 3,
                      testing::with(torchrun(rank, 3, port),
                                    {{"LOCAL_WORLD_SIZE", rank == wrong ? "1" : "3"}}));
    EXPECT_FALSE(processes.finish(kPatienceMs / 2));
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(processes.exit_code(rank), 1) << processes.report();
      EXPECT_THAT(processes.output(rank), HasSubstr("LOCAL_WORLD_SIZE=1, of 3 ranks"))
          << processes.report();
    }
  }
}

TEST(SeveralHosts, MeetOverTcpWithASecret) {
  char folder[] = "/tmp/fsccl-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string good = std::string(folder) + "/good", bad = std::string(folder) + "/bad";
  std::ofstream(good) << "0123456789abcdef0123456789abcdef";
  std::ofstream(bad) << "an entirely different secret of a job";
  ASSERT_EQ(chmod(good.c_str(), 0600) + chmod(bad.c_str(), 0600), 0);
  {
    const std::string port = unique_port();
    Processes processes;
    for (int rank = 0; rank < 4; ++rank) {
      Variables variables = own_host(rank, 4, port);
      variables.push_back({"FSCCL_JOB_SECRET_FILE", good});
      processes.start("exchange", rank, 4, variables);
    }
    EXPECT_TRUE(processes.finish(kPatienceMs)) << processes.report();
  }
  {
    const std::string port = unique_port();
    Processes processes;
    for (int rank = 0; rank < 2; ++rank) {
      Variables variables = own_host(rank, 2, port);
      variables.push_back({"FSCCL_JOB_SECRET_FILE", rank == 0 ? good : bad});
      variables.push_back({"TEST_TIMEOUT_MS", "2000"});
      processes.start("exchange", rank, 2, variables);
    }
    EXPECT_FALSE(processes.finish(kPatienceMs));
    EXPECT_THAT(processes.output(0), HasSubstr("missing: 1")) << processes.report();
    EXPECT_THAT(processes.output(1), HasSubstr("error -62")) << processes.report();
    EXPECT_THAT(processes.output(1), ::testing::Not(HasSubstr("entirely different")));
  }
  std::filesystem::remove_all(folder);
}

TEST(SeveralHosts, WithoutASecretOnlyWhenInsecureIsAskedFor) {
  for (const bool insecure : {false, true}) {
    const std::string port = unique_port();
    Processes processes;
    for (int rank = 0; rank < 3; ++rank) {
      Variables variables = own_host(rank, 3, port);
      variables.push_back({"FSCCL_INSECURE", insecure ? "1" : "0"});
      processes.start("exchange", rank, 3, variables);
    }
    EXPECT_EQ(processes.finish(kPatienceMs), insecure) << processes.report();
    if (insecure) continue;
    EXPECT_THAT(processes.output(2), HasSubstr("FSCCL_INSECURE=1"));
  }
}

TEST(Deaths, AKilledRankIsTheNewsOfAllOthers) {
  constexpr int kRanks = 12;
  for (int victim = 0; victim < kRanks; victim += 4) {
    fsccl_unique_id_t id;
    ASSERT_TRUE(create_unique_id(&id).ok());
    Processes processes;
    for (int rank = 0; rank < kRanks; ++rank)
      processes.start("wait_for_loss", rank, kRanks, {{"TEST_ID", hexadecimal(id)}});
    for (int rank = 0; rank < kRanks; ++rank)
      ASSERT_TRUE(processes.wait_for_output(rank, "joined", kPatienceMs)) << processes.report();
    processes.kill(victim, SIGKILL);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      EXPECT_TRUE(processes.wait_for_output(rank, "barrier: -60", kPatienceMs))
          << processes.report();
      EXPECT_THAT(processes.output(rank), HasSubstr("lost " + std::to_string(victim) + " dead"));
    }
  }
}

// Kills rank 1 of two. Rank 0, in the given role, must end well.
void expect_survives(const char* role) {
  fsccl_unique_id_t id;
  ASSERT_TRUE(create_unique_id(&id).ok());
  Processes processes;
  for (int rank = 0; rank < 2; ++rank)
    processes.start(rank == 0 ? role : "wait_for_loss", rank, 2, {{"TEST_ID", hexadecimal(id)}});
  for (int rank = 0; rank < 2; ++rank)
    ASSERT_TRUE(processes.wait_for_output(rank, "joined", kPatienceMs)) << processes.report();
  processes.kill(1, SIGKILL);
  processes.finish(kPatienceMs);
  EXPECT_EQ(processes.exit_code(0), 0) << processes.report();
}

TEST(Deaths, LeavingWaitsForTheHandlerThatHearsOfThem) { expect_survives("leave_while_told"); }

TEST(Deaths, AHandlerWithoutMemoryHearsOfThemAgain) { expect_survives("hear_without_memory"); }

TEST(Deaths, ARankThatNeverComesIsNamed) {
  const std::string port = unique_port();
  Processes processes;
  for (int rank = 0; rank < 4; ++rank) {
    Variables variables = torchrun(rank, 5, port);
    variables.push_back({"TEST_TIMEOUT_MS", "1500"});
    processes.start("exchange", rank, 5, variables);
  }
  EXPECT_FALSE(processes.finish(kPatienceMs));
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_THAT(processes.output(rank), HasSubstr("missing: 4")) << processes.report();
}

// Another program listens at the port of the job, and answers with bytes of another protocol.
TEST(Environment, AStrangerWhereTheRanksMeetIsNamed) {
  const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  ASSERT_EQ(bind(listener.get(), reinterpret_cast<const sockaddr*>(&at), size), 0);
  ASSERT_EQ(listen(listener.get(), 16), 0);
  ASSERT_EQ(getsockname(listener.get(), reinterpret_cast<sockaddr*>(&at), &size), 0);
  const std::string port = std::to_string(ntohs(at.sin_port));
  std::thread stranger([&] {
    const std::string greeting(256, 'x');
    for (int fd; (fd = accept(listener.get(), nullptr, nullptr)) >= 0; close(fd))
      (void)!write(fd, greeting.data(), greeting.size());
  });
  Processes processes;
  Variables variables = own_host(1, 2, unique_port());
  variables.insert(variables.end(), {{"FSCCL_BOOTSTRAP_PORT", port}, {"FSCCL_INSECURE", "1"}});
  processes.start("exchange", 1, 2, variables);
  EXPECT_FALSE(processes.finish(kPatienceMs));
  EXPECT_THAT(processes.output(0), HasSubstr("rank 1: at 127.0.0.1:" + port)) << processes.report();
  EXPECT_THAT(processes.output(0), HasSubstr("another program has that port"))
      << processes.report();
  shutdown(listener.get(), SHUT_RDWR);
  stranger.join();
}

TEST(Deaths, RankZeroKilledWhileTheOthersWait) {
  const std::string port = unique_port();
  fsccl_unique_id_t id;
  ASSERT_TRUE(create_unique_id(&id).ok());
  Processes processes;
  for (int rank = 0; rank < 3; ++rank)
    processes.start("wait_for_loss", rank, 4,
                    {{"TEST_ID", hexadecimal(id)}, {"TEST_TIMEOUT_MS", "4000"}});
  processes.kill(0, SIGKILL);
  // Rank 0 may die before or after the others have reached it. In both cases ranks 1 and 2 fail to
  // join, and exit with 1.
  EXPECT_FALSE(processes.finish(kPatienceMs));
  EXPECT_EQ(processes.exit_code(1), 1) << processes.report();
  EXPECT_EQ(processes.exit_code(2), 1) << processes.report();
}

}  // namespace

testing::Roles roles() {
  return {{"exchange", exchange},
          {"wait_for_loss", wait_for_loss},
          {"leave_while_told", leave_while_told},
          {"hear_without_memory", hear_without_memory}};
}

}  // namespace fsccl

int main(int argc, char** argv) {
  if (const auto code = fsccl::testing::run_role(argc, argv, fsccl::roles())) return *code;
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
