// Tests ranks whose process may open no more files (ulimit -n), at whatever point, or has few
// addresses (ulimit -v). All ranks of the job learn of it at once, with the limit's name.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "fsccl/fsccl.h"
#include "multi/processes.h"

namespace fsccl::testing::narrow_tests {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3, kTaken = 40;  // descriptors of the program before the library opens any
constexpr int64_t kPatienceMs = 20'000;

int failed(const char* call) {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  std::printf("%s: error %d: %s\n", call, info.code, info.text);
  return 1;
}

// Leaves this many descriptors free from now on.
void leave_free(int free) {
  while (dup(STDIN_FILENO) < kTaken - 1) {
  }
  int next = dup(STDIN_FILENO);
  close(next);
  const rlimit limit{static_cast<rlim_t>(next + free), static_cast<rlim_t>(next + free)};
  setrlimit(RLIMIT_NOFILE, &limit);
}

// Leaves this many bytes of addresses free from now on.
void leave_addresses(uint64_t bytes) {
  long pages = 0;
  FILE* const file = std::fopen("/proc/self/statm", "r");
  if (file == nullptr || std::fscanf(file, "%ld", &pages) != 1) std::abort();
  std::fclose(file);
  const rlim_t most = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + bytes;
  const rlimit limit{most, most};
  setrlimit(RLIMIT_AS, &limit);
}

// Makes all calls that take descriptors, with TEST_FREE descriptors from TEST_PHASE on.
int everything(const Child&) {
  const char* const given = std::getenv("TEST_PHASE");
  const std::string phase = given ? given : "";
  const int free = given ? std::atoi(std::getenv("TEST_FREE")) : -1;
  fsccl_comm_t comm = nullptr, half = nullptr;
  fsccl_pool_t pool = nullptr;
  const auto enter = [&](const char* name) {
    if (free >= 0 && phase == name) leave_free(free);
  };
  enter("join");
  if (fsccl_comm_create(nullptr, &comm) < 0) return failed("join");
  enter("split");
  if (fsccl_comm_split(comm, 0, 0, nullptr, &half) < 0) return failed("split");
  enter("pool");
  if (const char* const text = std::getenv("TEST_ADDRESSES"))
    leave_addresses(std::strtoull(text, nullptr, 10));
  fsccl_pool_config_t config = FSCCL_POOL_CONFIG_INIT;
  if (fsccl_pool_create(comm, &config, &pool) < 0) return failed("pool");
  if (fsccl_barrier(comm, nullptr, nullptr) < 0) return failed("barrier");
  fsccl_pool_destroy(pool);
  fsccl_comm_destroy(half);
  return fsccl_comm_destroy(comm) < 0 ? failed("destroy") : 0;
}

class Descriptors : public ::testing::TestWithParam<const char*> {};

// In the phase "join" the victim has at least one free descriptor: without any, it could not
// connect to the others to report its error.
TEST_P(Descriptors, TooFewAreTheErrorOfAllRanks) {
  const bool joins = std::string(GetParam()) == "join";
  for (const int victim : {0, 1, kRanks}) {  // kRanks: all of them
    bool enough = false;
    for (int free = joins ? 1 : 0; free < 40 && !enough; free += joins ? 3 : 1) {
      Processes processes;
      for (int rank = 0; rank < kRanks; rank++) {
        const bool short_of_them = victim == kRanks || rank == victim;
        processes.start("everything", rank, kRanks,
                        with(job(rank, kRanks, 21000 + getpid() % 1000),
                             {{"TEST_FREE", short_of_them ? std::to_string(free) : "-1"},
                              {"TEST_PHASE", GetParam()},
                              {"TORCHELASTIC_RUN_ID", std::to_string(getpid()) + GetParam()}}));
      }
      enough = processes.finish(kPatienceMs);
      if (enough) break;
      for (int rank = 0; rank < kRanks; rank++) {
        EXPECT_EQ(processes.exit_code(rank), 1) << free << " are free on " << victim << '\n'
                                                << processes.report();
        EXPECT_THAT(processes.output(rank), HasSubstr("error " + std::to_string(FSCCL_ERR_LIMIT)))
            << free << " are free on " << victim;
        EXPECT_THAT(processes.output(rank), HasSubstr("ulimit -n"))
            << free << " are free on " << victim;
      }
    }
    EXPECT_TRUE(enough);
  }
}

// The addresses that a pool reserves follow its limit.
TEST(Addresses, FewAreEnoughForASmallPoolOrTheErrorOfAllRanks) {
  for (const bool enough : {true, false}) {
    Processes processes;
    for (int rank = 0; rank < kRanks; rank++) {
      Variables variables =
          with(job(rank, kRanks, 21500 + getpid() % 1000), {{"FSCCL_POOL_LIMIT", "64M"}});
      if (enough || rank == 1)
        variables.emplace_back("TEST_ADDRESSES",
                               std::to_string(enough ? uint64_t{1} << 30 : uint64_t{200} << 20));
      processes.start("everything", rank, kRanks, variables);
    }
    EXPECT_EQ(processes.finish(kPatienceMs), enough) << processes.report();
    for (int rank = 0; rank < kRanks && !enough; rank++) {
      EXPECT_THAT(processes.output(rank),
                  HasSubstr("pool: error " + std::to_string(FSCCL_ERR_LIMIT)));
      EXPECT_THAT(processes.output(rank), HasSubstr("ulimit -v"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(From, Descriptors, ::testing::Values("join", "split", "pool"));

const AddRoles roles{{"everything", everything}};

}  // namespace
}  // namespace fsccl::testing::narrow_tests
