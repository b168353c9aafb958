// Tests which stores large calls get, by the times of these calls.
#include "comm/store_trial.h"

#include <gtest/gtest.h>

namespace fsccl::testing {
namespace {

// Makes so many calls of `streaming` or `cached` ns. Returns how many had stores past the caches.
int calls(StoreTrial& trial, int count, int64_t streaming, int64_t cached) {
  int streamed = 0;
  for (int i = 0; i < count; i++) {
    const bool streams = trial.next() == Stores::streaming;
    streamed += streams;
    trial.took(streams ? streaming : cached);
  }
  return streamed;
}

TEST(StoreTrial, TheFasterStoresStay) {
  for (const Stores expected : {Stores::streaming, Stores::cached}) {
    StoreTrial caches_win(expected), detour_wins(expected);
    EXPECT_EQ(calls(caches_win, 256, 1000, 900), 4);
    EXPECT_EQ(calls(detour_wins, 256, 900, 1000), 252);
  }
}

TEST(StoreTrial, BothAreTriedAgain) {
  StoreTrial trial(Stores::streaming);
  calls(trial, 256, 1000, 900);
  EXPECT_EQ(calls(trial, 256, 900, 1000), 252) << "the program uses other buffers now";
  EXPECT_EQ(calls(trial, 256, 1000, 900), 4);
}

// A program that makes few calls gets those stores only that are expected to be faster.
TEST(StoreTrial, TheExpectedStoresComeFirst) {
  StoreTrial streams(Stores::streaming), caches(Stores::cached);
  EXPECT_EQ(calls(streams, 4, 1000, 100), 4);
  EXPECT_EQ(calls(caches, 4, 100, 1000), 0);
}

TEST(StoreTrial, ASmallWinIsNone) {
  StoreTrial streams(Stores::streaming), caches(Stores::cached);
  EXPECT_EQ(calls(streams, 256, 1000, 980), 252);
  EXPECT_EQ(calls(caches, 256, 980, 1000), 4);
}

// The first call with other stores finds the caches as the calls before have left them, and a call
// may be late because another rank was.
TEST(StoreTrial, FirstAndLateCallsDoNotDecide) {
  StoreTrial trial(Stores::streaming);
  for (int i = 0; i < 8; i++) trial.took(i % 4 == 0 ? (i ? 9000 : 1) : i < 4 ? 1000 : 900);
  EXPECT_EQ(trial.next(), Stores::cached);
  StoreTrial late(Stores::streaming);
  for (int i = 0; i < 8; i++) late.took(i == 1 || i == 6 ? 5000 : i < 4 ? 1000 : 900);
  EXPECT_EQ(late.next(), Stores::cached);
  StoreTrial lucky(Stores::streaming);
  for (int i = 0; i < 8; i++) lucky.took(i == 5 ? 500 : 1000);  // one call alone does not decide
  EXPECT_EQ(lucky.next(), Stores::streaming);
}

}  // namespace
}  // namespace fsccl::testing
