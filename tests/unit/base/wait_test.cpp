#include "base/wait.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fsccl {
namespace {

TEST(Wait, EndsByTheConditionFirst) {
  int pauses = 0;
  const auto pause = [&](int64_t) { pauses++; };
  EXPECT_EQ(wait_until([] { return true; }, Deadline::in_ms(0), [] { return true; }, pause),
            WaitEnd::held);
  EXPECT_EQ(wait_until([] { return false; }, Deadline::in_ms(0), [] { return true; }, pause),
            WaitEnd::broken);
  EXPECT_EQ(wait_until([] { return false; }, Deadline::in_ms(0), kNothingBreaks, pause),
            WaitEnd::late);
  EXPECT_EQ(pauses, 0);
}

TEST(Wait, PausesUntilTheConditionHolds) {
  int looks = 0;
  std::vector<int64_t> asked;
  const auto pause = [&](int64_t left_ns) { asked.push_back(left_ns); };
  EXPECT_EQ(wait_until([&] { return ++looks == 4; }, Deadline::never(), kNothingBreaks, pause),
            WaitEnd::held);
  EXPECT_EQ(asked, std::vector<int64_t>(3, kLongestWaitNs));
}

TEST(Wait, ABreakCheckGivesItsError) {
  int looks = 0;
  const BreakCheck broken = [&]() -> Status {
    return ++looks < 3 ? success() : fail(FSCCL_ERR_ABORTED, "somebody aborted");
  };
  const auto never = [] { return false; };
  const Result<bool> end = wait_unless(broken, never, Deadline::never(), Naps(1'000));
  ASSERT_FALSE(end.ok());
  EXPECT_EQ(end.status().code(), FSCCL_ERR_ABORTED);
  EXPECT_EQ(end.status().text(), "somebody aborted");
  EXPECT_EQ(looks, 3);
  EXPECT_FALSE(wait_unless({}, never, Deadline::in_ms(1), Naps(1'000)).value());
}

TEST(Wait, AThreadIsWokenByANotification) {
  std::mutex mutex;
  Condition changed;
  bool done = false;
  std::thread other([&] {
    const std::lock_guard lock(mutex);
    done = true;
    changed.notify_all();
  });
  std::unique_lock lock(mutex);
  EXPECT_EQ(wait_until([&] { return done; }, Deadline::never(), kNothingBreaks,
                       UntilNotified{lock, changed}),
            WaitEnd::held);
  EXPECT_TRUE(lock.owns_lock());
  lock.unlock();
  other.join();
}

TEST(Wait, NapsGrowAndDoNotOutlastTheDeadline) {
  Naps naps(1, 1'000, int64_t{3600} * 1'000'000'000);
  const auto begin = now_ns();
  // Each nap has 1 us left. If naps ignored that, the last one would take an hour.
  for (int i = 0; i < 70; i++) naps(1'000);
  EXPECT_LT(now_ns() - begin, int64_t{60} * 1'000'000'000);
}

}  // namespace
}  // namespace fsccl
