// Tests when a waiting thread yields, and when it sleeps instead.
#include "engine/yield_rest.h"

#include <gtest/gtest.h>

namespace fsccl::testing {
namespace {

constexpr int64_t kMs = 1'000'000;

// Makes a yield of 3 ms as soon as the rest before is over, and returns how long the rest after it
// is. `now` becomes the time when that rest is over.
int64_t rest_after_long_yield(YieldRest& rest, int64_t& now) {
  now += 3 * kMs;
  rest.yielded(3 * kMs, now);
  const int64_t begin = now;
  while (!rest.over(now)) now += kMs / 10;
  return now - begin;
}

TEST(YieldRest, ShortYieldsGoOn) {
  YieldRest rest;
  for (int64_t now = 1; now < 100 * kMs; now += kMs) {
    rest.yielded(2 * kMs, now);
    EXPECT_TRUE(rest.over(now));
  }
}

TEST(YieldRest, RestsGrowWhileAnotherThreadComputes) {
  YieldRest rest;
  int64_t now = 1000 * kMs;
  for (const int64_t expected : {1, 2, 4, 8, 16, 32, 32})
    EXPECT_EQ(rest_after_long_yield(rest, now), expected * kMs);
}

TEST(YieldRest, ALongYieldNowAndThenCostsLittle) {
  YieldRest rest;
  int64_t now = 1000 * kMs;
  for (int i = 0; i < 10; i++) {
    EXPECT_EQ(rest_after_long_yield(rest, now), kMs);
    for (int k = 0; k < 50; k++) rest.yielded(kMs / 1000, now += kMs / 10);
  }
}

}  // namespace
}  // namespace fsccl::testing
