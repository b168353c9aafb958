// Tests marks of streams: which work waits for which mark, which marks the pool knows to be over,
// and when it makes events.
#include "pool/device/stream_marks.h"

#include "tests/conformance/capture.h"
#include "tests/unit/on_device.h"

namespace fsccl::testing {
namespace {

using Marks = OnDevice;

TEST_F(Marks, OfOneStreamAloneCostNoCallOfTheDriver) {
  TestStream a;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value();
  const uint64_t before = control.calls();
  for (int i = 0; i < 100; i++) ASSERT_TRUE(marks.set(first).ok());
  EXPECT_TRUE(marks.make_wait(first, {first, 100}).ok());
  EXPECT_EQ(control.calls(), before);
  EXPECT_EQ(marks.events(), 0u);
}

TEST_F(Marks, AnotherStreamRunsBehindTheMark) {
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value();
  page.hold(a, 0);
  const StreamMark early = marks.set(first).take();  // when there is no other stream
  const uint32_t second = marks.number(b).value();
  ASSERT_TRUE(marks.make_wait(second, early).ok());
  b.fill(page.room(), 7, 1);
  EXPECT_FALSE(b.idle());
  EXPECT_FALSE(marks.known_over(early));
  page.word(0) = 1;
  b.finish();
  EXPECT_EQ(page.seen()[0], 7);
  marks.look(first);
  EXPECT_TRUE(marks.known_over(early));
}

TEST_F(Marks, WhatIsPutBehindAMarkIsNotWaitedFor) {
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value(), second = marks.number(b).value();
  const StreamMark mark = marks.set(first).take();
  page.hold(a, 0);
  ASSERT_TRUE(marks.set(first).ok());
  ASSERT_TRUE(marks.make_wait(second, mark).ok());
  b.finish();
  page.word(0) = 1;
}

// A call of the driver takes longer than everything else for a planned slot. So there are no more
// calls than the order of the streams needs.
TEST_F(Marks, BetweenTwoStreamsTheDriverIsAskedNothing) {
  NEEDS_STAND_IN();
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value(), second = marks.number(b).value();
  ASSERT_TRUE(marks.make_wait(second, marks.set(first).take()).ok());  // makes the event
  const uint64_t queries = control.calls("cuEventQuery"),
                 pushes = control.calls("cuCtxPushCurrent_v2");
  {
    const StreamMarks::Calls calls(marks);
    for (size_t i = 0; i < StreamMarks::kMostEvents / 2; i++)
      ASSERT_TRUE(marks.make_wait(second, marks.set(first).take()).ok());
  }
  EXPECT_EQ(control.calls("cuEventQuery"), queries);
  // The first use makes an event, for which the context is made current.
  EXPECT_LE(control.calls("cuCtxPushCurrent_v2"), pushes + 1 + StreamMarks::kMostEvents / 2);
  a.finish();
  marks.look(first);
  const uint64_t again = control.calls("cuCtxPushCurrent_v2");
  {
    const StreamMarks::Calls calls(marks);
    for (size_t i = 0; i < StreamMarks::kMostEvents / 2; i++)
      ASSERT_TRUE(marks.make_wait(second, marks.set(first).take()).ok());
  }
  EXPECT_EQ(control.calls("cuCtxPushCurrent_v2"), again + 1);
}

// An event that is recorded in a captured stream would belong to the graph. Nobody could query it,
// and a stream that waited for it would be captured, too.
TEST_F(Marks, OfAStreamThatIsCapturedAreOpenUntilThatIsOver) {
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value();
  page.hold(a, 0);
  const StreamMark early = marks.set(first).take();
  uint32_t second = 0;
  {
    const Capture capture(0, a.get());
    second = marks.number(b).value();
    EXPECT_EQ(marks.make_wait(second, early).code(), FSCCL_ERR_NOT_AVAILABLE);
    EXPECT_FALSE(marks.wait_for_all(Deadline::at(0)).value());
    EXPECT_FALSE(marks.known_over(early));
    const StreamMark later = marks.set(second).take();
    page.hold(b, 1);
    EXPECT_EQ(marks.make_wait(first, marks.set(second).take()).code(), FSCCL_ERR_NOT_AVAILABLE);
    page.word(1) = 1;
    b.finish();
    EXPECT_TRUE(marks.make_wait(first, later).ok());
  }
  ASSERT_TRUE(marks.make_wait(second, early).ok());
  b.fill(page.room(), 7, 1);
  EXPECT_FALSE(b.idle());
  page.word(0) = 1;
  b.finish();
  EXPECT_TRUE(marks.wait_for_all(Deadline::never()).value());
  EXPECT_TRUE(marks.known_over(early));
}

TEST_F(Marks, AWaitIsSaidOnceAndCoversWhatIsEarlier) {
  NEEDS_STAND_IN();
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value(), second = marks.number(b).value();
  page.hold(a, 0);
  const StreamMark early = marks.set(first).take(), late = marks.set(first).take();
  const uint64_t before = control.calls("cuStreamWaitEvent");
  for (const StreamMark& mark : {late, late, early})
    ASSERT_TRUE(marks.make_wait(second, mark).ok());
  EXPECT_EQ(control.calls("cuStreamWaitEvent"), before + 1);
  page.word(0) = 1;
}

TEST_F(Marks, EventsAreUsedAgainAndOfLongOpenMarksTheYoungestHaveOne) {
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value(), second = marks.number(b).value();
  page.hold(a, 0);
  std::vector<StreamMark> set;
  for (int i = 0; i < 200; i++) set.push_back(marks.set(first).take());  // fits a GPU's queue
  EXPECT_LE(marks.events(), StreamMarks::kMostEvents + 1);
  // The event of the first mark was reused for another one, so the wait is for the next mark that
  // has an event.
  ASSERT_TRUE(marks.make_wait(second, set.front()).ok());
  b.fill(page.room(), 7, 1);
  EXPECT_FALSE(b.idle());
  page.word(0) = 1;
  a.finish();
  const uint64_t made = control.calls("cuEventCreate");
  for (int i = 0; i < 1000; i++) {
    ASSERT_TRUE(marks.set(first).ok());
    a.finish();
  }
  EXPECT_EQ(control.calls("cuEventCreate"), made);
}

TEST_F(Marks, TheHostWaitsForAllUntilItsDeadline) {
  HostPage page;
  TestStream a, b;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value();
  ASSERT_TRUE(marks.number(b).ok());
  page.hold(a, 0);
  ASSERT_TRUE(marks.set(first).ok());
  EXPECT_FALSE(marks.wait_for_all(Deadline::in_ms(1)).value());
  page.word(0) = 1;
  EXPECT_TRUE(marks.wait_for_all(Deadline::never()).value());
}

TEST_F(Marks, AtTheEndTheHostWaitsForALoneStreamUntilItsDeadline) {
  HostPage page;
  TestStream a;
  StreamMarks marks(gpu());
  const uint32_t first = marks.number(a).value();
  page.hold(a, 0);
  ASSERT_TRUE(marks.set(first).ok());
  EXPECT_FALSE(marks.finish(Deadline::in_ms(1)).value());
  page.word(0) = 1;
  EXPECT_TRUE(marks.finish(Deadline::never()).value());
}

TEST_F(Marks, ThatHaveAnEventAreWaitedForWithoutTheContextAtTheEnd) {
  HostPage page;
  StreamMarks marks(gpu());
  TestStream captured;
  {
    TestStream a;
    const uint32_t first = marks.number(a).value();
    page.hold(a, 0);
    ASSERT_TRUE(marks.set(first).ok());
    ASSERT_TRUE(marks.record(first).ok());
    page.word(0) = 1;
  }
  const Capture capture(0, captured.get());  // meanwhile a thread cannot wait for the context
  EXPECT_TRUE(marks.finish(Deadline::never()).value());
}

TEST_F(Marks, TheStreamOfTheThreadIsRefusedAndTheLegacyOneHasTwoNames) {
  StreamMarks marks(gpu());
  EXPECT_EQ(marks.number(nullptr).value(),
            marks.number(reinterpret_cast<cuda::CUstream>(uintptr_t{1})).value());
  const Result<uint32_t> refused = marks.number(reinterpret_cast<cuda::CUstream>(uintptr_t{2}));
  EXPECT_EQ(refused.status().code(), FSCCL_ERR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace fsccl::testing
