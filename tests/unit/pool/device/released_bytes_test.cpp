// Tests the record of bytes that were given back, and of the work after which they are free. A
// stream that takes such bytes waits for exactly that work.
#include "pool/device/released_bytes.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsccl {
namespace {

cuda::CUstreamBatchMemOpParams wait_for(uint64_t address, uint64_t value) {
  return {.operation = cuda::CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = address, .value64 = value};
}

struct Needs {
  std::vector<StreamMark> marks;
  ReleasedBytes::Waits waits;
  uint64_t sequence(uint32_t stream) const {
    for (const StreamMark& mark : marks)
      if (mark.stream == stream) return mark.sequence;
    return 0;
  }
};
Needs needs(const ReleasedBytes& released, uint64_t begin, uint64_t end) {
  Needs result;
  released.needs(begin, end, &result.marks, &result.waits);
  return result;
}

TEST(ReleasedBytes, NeedsOnlyWhatWasGivenBackThere) {
  ReleasedBytes released;
  released.add(0, 100, {0, 7}, {wait_for(8, 1)});
  released.add(100, 200, {1, 3}, {});
  released.add(300, 400, {2, 9}, {wait_for(16, 5)});
  EXPECT_EQ(needs(released, 200, 300).marks.size(), 0u);
  const Needs first = needs(released, 50, 100);
  EXPECT_EQ(first.marks.size(), 1u);
  EXPECT_EQ(first.sequence(0), 7u);
  ASSERT_EQ(first.waits.size(), 1u);
  EXPECT_EQ(first.waits[0].address, 8u);
  const Needs all = needs(released, 99, 301);
  EXPECT_EQ(all.marks.size(), 3u);
  EXPECT_EQ(all.sequence(1), 3u);
  EXPECT_EQ(all.waits.size(), 2u);
}

TEST(ReleasedBytes, OneMarkAStreamAndOneWaitAWordTheLatest) {
  ReleasedBytes released;
  released.add(0, 10, {0, 7}, {wait_for(8, 0xfffffffe)});
  released.add(10, 20, {0, 9}, {wait_for(8, 2)});  // the word has overflowed since the first wait
  released.add(20, 30, {0, 8}, {wait_for(8, 1)});
  const Needs all = needs(released, 0, 30);
  ASSERT_EQ(all.marks.size(), 1u);
  EXPECT_EQ(all.sequence(0), 9u);
  ASSERT_EQ(all.waits.size(), 1u);
  EXPECT_EQ(all.waits[0].value64, 2u);
}

TEST(ReleasedBytes, WhatIsTakenIsForgottenTheRestIsNot) {
  ReleasedBytes released;
  released.add(0, 100, {0, 7}, {wait_for(8, 1)});
  released.forget(30, 60);
  EXPECT_EQ(released.ranges(), 2u);
  EXPECT_TRUE(needs(released, 30, 60).marks.empty());
  EXPECT_EQ(needs(released, 0, 31).sequence(0), 7u);
  EXPECT_EQ(needs(released, 59, 61).waits.size(), 1u);
  released.add(30, 60, {1, 1}, {});
  EXPECT_EQ(needs(released, 30, 60).sequence(0), 0u);
  EXPECT_EQ(needs(released, 0, 100).sequence(1), 1u);
  released.forget(0, UINT64_MAX);
  EXPECT_EQ(released.ranges(), 0u);
}

// One slot takes exactly the bytes of a slot before it, as in a step that repeats. Another begins
// where that slot begins and ends later.
TEST(ReleasedBytes, ARangeIsNeededWithItsOwnEndsAndWithOthers) {
  ReleasedBytes released;
  released.add(0, 100, {0, 7}, {wait_for(8, 1)});
  released.add(100, 200, {1, 3}, {wait_for(16, 5)});
  EXPECT_EQ(needs(released, 0, 100).sequence(0), 7u);
  EXPECT_EQ(needs(released, 0, 100).waits.size(), 1u);
  EXPECT_EQ(needs(released, 0, 101).sequence(1), 3u);
  EXPECT_EQ(needs(released, 0, 99).sequence(0), 7u);
  released.forget(100, 200);
  EXPECT_EQ(released.ranges(), 1u);
  EXPECT_TRUE(needs(released, 100, 200).marks.empty());
  EXPECT_EQ(needs(released, 0, 200).sequence(0), 7u);
  released.forget(0, 99);
  EXPECT_EQ(needs(released, 0, 100).sequence(0), 7u);  // byte 99 is still in the record
  released.forget(0, 100);
  EXPECT_EQ(released.ranges(), 0u);
}

}  // namespace
}  // namespace fsccl
