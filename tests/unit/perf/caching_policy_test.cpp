#include "perf/pool/caching_policy.h"

#include <gtest/gtest.h>

namespace fsccl::perf {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

StepEvent take(uint64_t key, uint64_t bytes, uint32_t stream = 0) {
  return {.stream = stream, .key = key, .bytes = bytes};
}
StepEvent give(uint64_t key) { return {.op = StepOp::kGiveBack, .key = key}; }

TEST(CachingPolicy, SegmentsAreRoundedBySize) {
  CachingPolicy policy(false);
  policy.apply(take(1, 1000));  // for a small block a segment of 2 MiB
  EXPECT_EQ(policy.reserved_bytes(), 2 * kMiB);
  policy.apply(take(2, 3 * kMiB));  // a segment of 20 MiB
  EXPECT_EQ(policy.reserved_bytes(), 22 * kMiB);
  policy.apply(take(3, 33 * kMiB));  // 34 MiB, as large segments are multiples of 2 MiB
  EXPECT_EQ(policy.reserved_bytes(), 56 * kMiB);
  EXPECT_EQ(policy.upstream_calls(), 3U);
}

TEST(CachingPolicy, StreamsDoNotShare) {
  CachingPolicy policy(false);
  policy.apply(take(1, 40 * kMiB, 0));
  policy.apply(give(1));
  policy.apply(take(2, 40 * kMiB, 1));
  EXPECT_EQ(policy.reserved_bytes(), 80 * kMiB);
  policy.apply(take(1, 40 * kMiB, 0));
  EXPECT_EQ(policy.reserved_bytes(), 80 * kMiB);
}

TEST(CachingPolicy, PiecesAreJoinedAgain) {
  CachingPolicy policy(false);
  policy.apply(take(1, 40 * kMiB));
  policy.apply(give(1));
  policy.apply(take(2, 10 * kMiB));
  policy.apply(take(3, 30 * kMiB));
  EXPECT_EQ(policy.reserved_bytes(), 40 * kMiB);
  policy.apply(give(2));
  policy.apply(give(3));
  policy.apply(take(4, 40 * kMiB));
  EXPECT_EQ(policy.reserved_bytes(), 40 * kMiB);
}

TEST(CachingPolicy, AnExpandableSegmentGrowsWhereItEnds) {
  CachingPolicy policy(true);
  policy.apply(take(1, 30 * kMiB));
  EXPECT_EQ(policy.reserved_bytes(), 40 * kMiB);
  policy.apply(take(2, 25 * kMiB));  // takes the 10 MiB at the end, too
  EXPECT_EQ(policy.reserved_bytes(), 60 * kMiB);
  policy.apply(give(1));
  policy.apply(give(2));
  policy.apply(take(3, 60 * kMiB));
  EXPECT_EQ(policy.reserved_bytes(), 60 * kMiB);
}

}  // namespace
}  // namespace fsccl::perf
