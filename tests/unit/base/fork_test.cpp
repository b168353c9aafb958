// Tests that a fork marks only the child, and that the registry of hooks survives a fork.
#include "base/fork.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace fsccl {
namespace {

// Returns the exit status of a child that runs f.
template <class F>
int in_child(F f) {
  const pid_t child = fork();
  if (child == 0) _exit(f());
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void increment(void* context) { ++*static_cast<int*>(context); }

TEST(Fork, OnlyChildrenOfInitialisedProcessesAreMarked) {
  const bool first = in_child([] { return forked() ? 1 : 0; }) == 0;
  EXPECT_TRUE(first) << "not initialised yet";
  watch_forks();
  watch_forks();
  EXPECT_FALSE(forked());
  EXPECT_EQ(in_child([] { return forked() ? 7 : 0; }), 7);
  EXPECT_EQ(in_child([] { return in_child([] { return forked() ? 7 : 0; }); }), 7)
      << "a child's child";
  EXPECT_FALSE(forked()) << "the parent does not notice";
  EXPECT_EQ(forked_status().code(), FSCCL_ERR_FORKED);
}

TEST(Fork, HooksRunOnceInTheChildAlone) {
  int kept = 0, removed = 0;
  auto first = add_fork_hook(increment, &kept);
  auto second = add_fork_hook(increment, &removed);
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first.value(), second.value());
  remove_fork_hook(second.value());
  EXPECT_EQ(in_child([&] { return kept * 10 + removed; }), 10);
  EXPECT_EQ(kept, 0);
  remove_fork_hook(first.value());
  remove_fork_hook(-1);
  EXPECT_EQ(in_child([&] { return kept; }), 0);
}

TEST(Fork, RegistryIsBounded) {
  int runs = 0;
  std::vector<int> ids;
  while (true) {
    auto id = add_fork_hook(increment, &runs);
    if (!id.ok()) {
      EXPECT_EQ(id.status().code(), FSCCL_ERR_LIMIT);
      break;
    }
    ids.push_back(id.value());
    ASSERT_LT(ids.size(), 1'000'000u);
  }
  for (const int id : ids) remove_fork_hook(id);
  const auto again = add_fork_hook(increment, &runs);
  ASSERT_TRUE(again.ok());
  remove_fork_hook(again.value());
}

TEST(Fork, ForkWhileAnotherThreadRegisters) {
  std::atomic<bool> stop{false};
  int runs = 0;
  std::thread other([&] {
    while (!stop) {
      auto id = add_fork_hook(increment, &runs);
      if (id.ok()) remove_fork_hook(id.value());
    }
  });
  for (int i = 0; i < 50; ++i) {
    // The registry works in the child: it was not left locked.
    EXPECT_EQ(in_child([] { return add_fork_hook(increment, nullptr).ok() && forked() ? 7 : 0; }),
              7);
  }
  stop = true;
  other.join();
}

}  // namespace
}  // namespace fsccl
