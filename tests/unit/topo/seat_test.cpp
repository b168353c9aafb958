// Tests where a process may run, and how far two of them are from each other.
#include "topo/seat.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <algorithm>
#include <array>

using namespace fsccl::topo;

namespace {

TEST(Seat, OfThisProcess) {
  std::array<uint64_t, 16> processors{};
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  size_t first = 1024;
  for (size_t cpu = 0; cpu < 1024; cpu++) {
    if (!CPU_ISSET(cpu, &set)) continue;
    processors[cpu / 64] |= uint64_t{1} << cpu % 64;
    first = std::min(first, cpu);
  }
  const Seat all = seat_of(processors);
  EXPECT_EQ(seat_of({}).package, Seat::kSeveral);
  EXPECT_EQ(seat_of(std::array<uint64_t, 16>{}).package, Seat::kSeveral);
  std::array<uint64_t, 16> one{};
  one[first / 64] = uint64_t{1} << first % 64;
  const Seat alone = seat_of(one);
  EXPECT_TRUE(all.package == Seat::kSeveral || all.package == alone.package);
  EXPECT_EQ(between(alone, alone), alone.cache != Seat::kSeveral     ? LinkClass::cache
                                   : alone.numa != Seat::kSeveral    ? LinkClass::numa
                                   : alone.package != Seat::kSeveral ? LinkClass::package
                                                                     : LinkClass::host);
}

TEST(Seat, ByTheSmallestPartInCommon) {
  EXPECT_EQ(between({0, 0, 0}, {0, 0, 0}), LinkClass::cache);
  EXPECT_EQ(between({0, 0, 0}, {0, 0, 4}), LinkClass::numa);
  EXPECT_EQ(between({0, 0, 0}, {0, 1, 4}), LinkClass::package);
  EXPECT_EQ(between({0, 0, 0}, {8, 1, 4}), LinkClass::host);
  EXPECT_EQ(between({0, 0, Seat::kSeveral}, {0, 0, Seat::kSeveral}), LinkClass::numa)
      << "unknown is not the same";
  EXPECT_EQ(between({}, {}), LinkClass::host);
}

}  // namespace
