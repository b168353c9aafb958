// Compares the free ranges of a pool with a plain list of bytes.
#include "pool/device/free_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace fsccl {
namespace {

TEST(FreeRanges, TakesTheSmallestThatFitsAlignedTheLowestOfThose) {
  FreeRanges ranges;
  ranges.add(0, 100, 1);
  ranges.add(200, 264, 2);
  ranges.add(320, 384, 3);
  uint64_t bytes = 0;
  EXPECT_EQ(ranges.find(64, 64, &bytes), 320u);  // aligned, 200 .. 264 has too few bytes
  EXPECT_EQ(bytes, 64u);
  EXPECT_EQ(ranges.find(60, 1, &bytes), 200u);
  EXPECT_EQ(ranges.find(65, 1, &bytes), 0u);
  EXPECT_EQ(ranges.find(101, 1, &bytes), std::nullopt);
}

TEST(FreeRanges, NeighboursAreOneFreeSinceTheLater) {
  FreeRanges ranges;
  ranges.add(0, 10, 5);
  ranges.add(20, 30, 9);
  ranges.add(10, 20, 7);
  ASSERT_EQ(ranges.ranges().size(), 1u);
  EXPECT_EQ(ranges.remove(5, 6), 9u);
  EXPECT_EQ(ranges.remove(5, 6), 0u);
  uint64_t bytes = 0;
  EXPECT_EQ(ranges.find(24, 1, &bytes), 6u);
}

TEST(FreeRanges, AgreesWithBytesOneByOne) {
  std::mt19937 random(7);
  FreeRanges ranges;
  std::vector<uint64_t> sequence(512, 0);  // the sequence of each byte; 0: it is not free
  for (uint64_t step = 1; step < 20'000; step++) {
    const uint64_t begin = random() % 500, end = begin + 1 + random() % 12;
    if (random() % 2) {
      bool free = true;
      for (uint64_t at = begin; at < end; at++) free = free && !sequence[at];
      if (!free) continue;
      ranges.add(begin, end, step);
      for (uint64_t at = begin; at < end; at++) sequence[at] = step;
    } else {
      uint64_t latest = 0;
      for (uint64_t at = begin; at < end; at++)
        latest = std::max(latest, sequence[at]), sequence[at] = 0;
      EXPECT_GE(ranges.remove(begin, end), latest);  // joined ranges have the later sequence
    }
    uint64_t in = 0, held = 0;
    for (const uint64_t each : sequence) in += each != 0;
    for (const auto& [from, range] : ranges.ranges()) {
      held += range.end - from;
      EXPECT_TRUE(sequence[from] && sequence[range.end - 1] && !sequence[range.end]);
      EXPECT_TRUE(from == 0 || !sequence[from - 1]);
    }
    ASSERT_EQ(in, held);
  }
}

}  // namespace
}  // namespace fsccl
