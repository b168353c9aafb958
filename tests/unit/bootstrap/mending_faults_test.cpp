// Tests that a tree is mended although the system refuses a thread, or memory at any call. No rank
// crashes, and a rank that cannot go on at first does so later.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <latch>
#include <new>

#include "bootstrap/tree.h"
#include "faults/fault_points.h"
#include "ranks.h"

namespace fsccl {
namespace {

using testing::Joined;

constexpr int kRanks = 5;  // few enough that all others are children of the root

int kind_of(const char* name) {
  int kind = 0;
  while (std::strcmp(testing::kFaultKinds[kind].name, name) != 0) kind++;
  return kind;
}

struct Answers {
  std::vector<Status> statuses;
  int reached = 0;
  size_t most_failed = 0;  // the most ranks that an answer counts as lost
  uint64_t calls[testing::kMostFaultKinds] = {};
  bool happened = false;
};

// The root leaves while the fault is active. The others mend the tree and agree which ranks are
// left.
Answers lose_the_root(const char* kind, uint64_t number) {
  const std::vector<Joined> joined = testing::join_all_by_id(kRanks);
  Answers answers;
  answers.statuses.resize(kRanks);
  std::vector<int> members;
  Job* root = nullptr;
  for (const Joined& one : joined) {
    EXPECT_TRUE(one.status.ok()) << one.status.text();
    if (!one.status.ok()) return answers;
    members.push_back(one.job->rank());
    if (static_cast<TreeJob&>(*one.job).order() == 0) root = one.job.get();
  }
  testing::FaultPlace place;
  std::latch all_here(kRanks), armed(1);
  std::atomic<int> reached{0};
  std::atomic<size_t> most_failed{0};
  testing::on_each_rank<int>(kRanks, [&](int rank) {
    Job& job = *joined[static_cast<size_t>(rank)].job;
    all_here.arrive_and_wait();
    if (&job == root) {
      testing::arm_fault(kind_of(kind), number, false, &place);
      armed.count_down();
      job.leave();
      return 0;
    }
    armed.wait();
    for (bool again = true; again;) {
      again = false;
      try {
        const Result<Job::Agreed> agreed =
            job.agree({1, members, {}, {}}, Deadline::in_ms(testing::kPatienceMs));
        if (!agreed.ok()) answers.statuses[static_cast<size_t>(rank)] = agreed.status().clone();
        reached += agreed.ok() && agreed.value().reached;
        if (agreed.ok()) most_failed = std::max(most_failed.load(), agreed.value().failed.size());
      } catch (const std::bad_alloc&) {
        again = true;
      }
    }
    return 0;
  });
  answers.happened = testing::fault_happened();
  testing::disarm_fault(answers.calls);
  answers.reached = reached;
  answers.most_failed = most_failed;
  return answers;
}

TEST(MendingFaults, WithoutAThreadItIsTriedAgain) {
  const Answers answers = lose_the_root("thread", 1);
  EXPECT_TRUE(answers.happened);
  for (const Status& status : answers.statuses) EXPECT_TRUE(status.ok()) << status.text();
  EXPECT_EQ(answers.reached, kRanks - 1);
}

// A rank that cannot connect for a reason of its own does not hold the other rank for dead.
TEST(MendingFaults, WithoutAConnectionItIsTriedAgain) {
  for (uint64_t number = 1; number <= 4; number++) {
    const Answers answers = lose_the_root("connect", number);
    for (const Status& status : answers.statuses) EXPECT_TRUE(status.ok()) << status.text();
    EXPECT_EQ(answers.reached, kRanks - 1);
    EXPECT_EQ(answers.most_failed, 1u) << number;
  }
}

// A rank that loses its links because of the fault is told that the others take it for dead.
TEST(MendingFaults, AnyCallForMemoryMayFail) {
  constexpr uint64_t kRuns = 10;
  const Answers without = lose_the_root("memory", 0);
  EXPECT_EQ(without.reached, kRanks - 1);
  const uint64_t calls = without.calls[kind_of("memory")];
  ASSERT_GT(calls, kRuns);
  for (uint64_t run = 0; run < kRuns; run++) {
    const Answers answers = lose_the_root("memory", 1 + run * calls / kRuns);
    int expelled = 0;
    for (const Status& status : answers.statuses) {
      if (status.ok()) continue;
      expelled++;
      EXPECT_EQ(status.code(), FSCCL_ERR_PEER_DEAD) << status.text();
    }
    EXPECT_EQ(answers.reached + expelled, kRanks - 1) << run;
    EXPECT_GT(answers.reached, 0) << run;
  }
}

}  // namespace
}  // namespace fsccl
