// Runs random steps under random limits (limited_steps.h) with real memory, by ranks in processes.
// Every byte is checked, and no communicator fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "multi/limited_steps.h"
#include "multi/processes.h"

namespace fsccl::testing::pool_limit_tests {
namespace {

constexpr int kRanks = 3, kSteps = 10, kSeeds = 15;
constexpr int64_t kLimitMs = 250'000;

int member(const Child&, const fsccl_allocator_t* source) {
  uint64_t calls = 0, refused = 0;
  fsccl_comm_t comm = nullptr;
  if (fsccl_comm_create(nullptr, &comm) < 0) return 20;
  for (uint64_t seed = 1; seed <= kSeeds; seed++) {
    LimitedSteps program(comm, seed, false, source);
    program.run(kSteps);
    if (!program.problem().empty()) return std::printf("%s\n", program.problem().c_str()), 21;
    calls += program.calls(), refused += program.refused();
  }
  if (source && source->destroy(source->context) < 0) return 24;
  std::printf("%d calls, %d of them refused\n", static_cast<int>(calls), static_cast<int>(refused));
  if (fsccl_comm_destroy(comm) < 0) return 22;
  return refused ? 0 : 23;
}

int on_source(const Child& self) {
  fsccl_allocator_t host = FSCCL_ALLOCATOR_INIT;
  return fsccl_allocator_host(&host) < 0 ? 25 : member(self, &host);
}

// If `hosts`, ranks are on two hosts.
void run(const char* role, int port, bool hosts = false) {
  Processes processes;
  for (int rank = 0; rank < kRanks; rank++) {
    Variables variables = job(rank, kRanks, port);
    variables.emplace_back("CUDA_VISIBLE_DEVICES", "");  // a process that sees a GPU keeps pages
    if (hosts) variables.emplace_back("FSCCL_HOST_ID", rank == 1 ? "b" : "a");
    if (hosts) variables.emplace_back("FSCCL_NETWORK", "tcp");
    processes.start(role, rank, kRanks, variables);
  }
  EXPECT_TRUE(processes.finish(kLimitMs)) << processes.report();
  for (int rank = 0; rank < kRanks; rank++)
    EXPECT_EQ(processes.exit_code(rank), 0) << processes.report();
  printf("%s", processes.output(0).c_str());
}

TEST(PoolLimit, NoCommunicatorIsLost) { run("steps", 20440); }
TEST(PoolLimit, NoCommunicatorIsLostBetweenHosts) { run("steps", 20441, true); }
TEST(PoolLimit, NoCommunicatorIsLostOnASource) { run("source", 20442); }

const AddRoles roles{{"steps", [](const Child& self) { return member(self, nullptr); }},
                     {"source", on_source}};

}  // namespace
}  // namespace fsccl::testing::pool_limit_tests
