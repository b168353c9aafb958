// Tests which path of a transport is taken: the fastest that both ends can take, which two ranks
// measure for all. The ranks are threads over a channel of shared memory. The paths are the test's
// own, and only differ in the time that they take.
#include "select/paths.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>

#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using namespace testing;

constexpr std::array kNames{"first", "slow", "fast"};
constexpr std::array<int64_t, 3> kTakesNs{300'000, 2'000'000, 0};
constexpr int kReadyAfter = 3;  // a path is ready when take_path() was called this many times

struct Ways {
  int rank = 0, taken = 0, asked = 0;
  int never = -1;  // the path that rank 0 cannot take
};
thread_local Ways ways;  // the paths of the rank that is this thread

class WithWays final : public Wrapped {
 public:
  explicit WithWays(const Wrapped& over)
      : Wrapped(over.inner, {.transport = "test", .mirrors = true}) {}
  void put(int, size_t at, const void* source, size_t bytes) override {
    const int64_t until =
        now_ns() + kTakesNs[ways.asked > kReadyAfter ? static_cast<size_t>(ways.taken) : 0];
    size_t ring = 0, slot = 0;
    std::memcpy(slots(ways.rank, &ring, &slot) + at, source, bytes);
    while (now_ns() < until) {
    }
  }
  const char* path(int number) const override {
    return number < 3 ? kNames[static_cast<size_t>(number)] : nullptr;
  }
  int take_path(int, int number) override {
    if (number == ways.never && ways.rank == 0) return -1;
    if (std::exchange(ways.taken, number) != number) ways.asked = 0;
    return ++ways.asked > kReadyAfter ? 1 : 0;
  }
};

struct FoundPath {
  std::array<uint8_t, 3> taken{};
  std::array<uint32_t, 3> ticks{};
};

// Lets three ranks find their paths. Ranks 1 and 2 are on another host than rank 0.
FoundPath find(int never) {
  FoundPath found;
  over_channel(3, [&](int rank, Wrapped& channel, uint32_t tick) {
    ways = {rank, 0, 0, never};
    WithWays with_ways(channel);
    const Startup startup{&with_ways, rank, 3, now_ns() + kLimitNs, [] { return false; }};
    const Paths paths = find_paths(
        startup, {topo::LinkClass::core, topo::LinkClass::network, topo::LinkClass::network},
        &tick);
    found.taken[static_cast<size_t>(rank)] = paths[static_cast<size_t>(topo::LinkClass::network)];
    found.ticks[static_cast<size_t>(rank)] = tick;
    EXPECT_EQ(paths[static_cast<size_t>(topo::LinkClass::core)], 0);
    EXPECT_EQ(ways.taken, 0);  // find_paths() leaves it to the caller to take the path
  });
  EXPECT_EQ(found.taken[1], found.taken[0]);
  EXPECT_EQ(found.taken[2], found.taken[0]);
  EXPECT_EQ(found.ticks[1], found.ticks[0]);
  EXPECT_EQ(found.ticks[2], found.ticks[0]);
  return found;
}

// If a rank does not run for a while, its measurement ends without a result, so the test tries
// again.
TEST(Paths, TheFastestIsTakenByAll) {
  int taken = 0;
  for (int attempt = 0; attempt < 100 && taken == 0; attempt++) {
    taken = find(-1).taken[0];
    EXPECT_NE(taken, 1);
  }
  EXPECT_EQ(taken, 2);
}

TEST(Paths, WhatOneCannotTakeNobodyDoes) {
  for (int attempt = 0; attempt < 5; attempt++) EXPECT_EQ(find(2).taken[0], 0);
}

TEST(Paths, AreNamed) {
  over_channel(1, [](int, Wrapped& channel, uint32_t) {
    const WithWays with_ways(channel);
    Paths paths{};
    paths[static_cast<size_t>(topo::LinkClass::network)] = 2;
    EXPECT_STREQ(path_name(with_ways, paths, topo::LinkClass::network), "fast");
    EXPECT_STREQ(path_name(with_ways, paths, topo::LinkClass::host), "first");
    EXPECT_EQ(path_name(channel, paths, topo::LinkClass::network), nullptr);
  });
}

}  // namespace
}  // namespace fsccl
