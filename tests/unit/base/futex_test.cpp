#include "base/futex.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/clock.h"

namespace fsccl {
namespace {

constexpr int64_t kShortNs = 1'000'000, kLongNs = 60'000'000'000;

uint32_t load(uint32_t& word) { return std::atomic_ref<uint32_t>(word).load(); }

TEST(FutexSleeper, StaysCountedBetweenItsSleeps) {
  uint32_t word = 0, sleepers = 0;
  {
    FutexSleeper sleeper;
    EXPECT_EQ(load(sleepers), 0u);
    for (int i = 0; i < 3; i++) {
      sleeper.sleep(&word, 0, &sleepers, kShortNs);
      EXPECT_EQ(load(sleepers), 1u);
    }
  }
  EXPECT_EQ(load(sleepers), 0u);
}

TEST(FutexSleeper, ReturnsAtOnceWhenTheWordDiffers) {
  uint32_t word = 1, sleepers = 0;
  const int64_t begin = now_ns();
  FutexSleeper().sleep(&word, 0, &sleepers, kLongNs);
  EXPECT_LT(now_ns() - begin, kLongNs);
}

TEST(FutexSleeper, GoesToAnotherWord) {
  uint32_t words[2] = {}, sleepers[2] = {};
  FutexSleeper sleeper;
  for (const size_t at : {0, 1, 0}) {
    sleeper.sleep(&words[at], 0, &sleepers[at], kShortNs);
    EXPECT_EQ(load(sleepers[at]), 1u);
    EXPECT_EQ(load(sleepers[1 - at]), 0u);
  }
}

// Only the first sleep on a word begins with a brief one; every later sleep is one long sleep. A
// store ends either.
TEST(FutexSleeper, IsWokenFromEverySleep) {
  uint32_t word = 0, sleepers = 0;
  for (const bool slept_before : {false, true}) {
    const uint32_t value = load(word);
    FutexSleeper sleeper;
    if (slept_before) sleeper.sleep(&word, value, &sleepers, kShortNs);
    std::thread signaller([&] {
      while (load(sleepers) == 0) std::this_thread::yield();
      futex_store(&word, value + 1, &sleepers);
    });
    const int64_t begin = now_ns();
    sleeper.sleep(&word, value, &sleepers, kLongNs);
    EXPECT_LT(now_ns() - begin, kLongNs);
    signaller.join();
  }
}

}  // namespace
}  // namespace fsccl
