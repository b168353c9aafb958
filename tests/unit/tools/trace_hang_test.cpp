#include "tools/trace_hang.h"

#include <gmock/gmock.h>

#include "tools/timeline_page.h"

namespace fsccl::trace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A rank of a job of eight. Its communicators are numbered in the order in which they are first
// named.
struct Rank {
  explicit Rank(int rank) {
    made.rank = rank;
    made.ranks = 8;
    made.host = "host";
    made.last_look_ns = 1000;
  }
  Rank& event(const char* kind, const std::string& communicator, uint64_t sequence, int peer = -1) {
    const auto number =
        static_cast<int>(numbers.try_emplace(communicator, numbers.size()).first->second);
    RecordedCommunicator& known = made.communicators[number];
    known.tag = known.name = communicator;
    Event& one = made.events.emplace_back();
    one.at_ns = static_cast<int64_t>(made.events.size());
    one.kind = kind;
    one.communicator = number;
    one.peer = peer;
    one.sequence = sequence;
    one.operation = "all_gather";
    return *this;
  }
  Recording made;
  std::map<std::string, size_t> numbers;
};

// Ranks 3 and 5 wait for each other, on two communicators that they use in opposite order. The
// first operation of each waits for nobody any more, since the other rank has completed it.
TEST(TraceHang, ACircleIsFollowedThroughTheOperationsThatWait) {
  Rank three(3), five(5);
  three.event("submitted", "a", 1).event("submitted", "x", 1).event("blocked", "x", 1, 5);
  three.event("submitted", "b", 1).event("completed", "b", 1);
  five.event("submitted", "b", 1).event("submitted", "y", 1).event("blocked", "y", 1, 3);
  five.event("submitted", "a", 1).event("completed", "a", 1);
  const Verdict verdict = find_cause({three.made, five.made});
  EXPECT_EQ(verdict.cause, "cycle");
  EXPECT_THAT(verdict.guilty, ElementsAre(3, 5));
  EXPECT_THAT(verdict.text, HasSubstr("Ranks 3, 5 wait for each other"));
}

TEST(TraceHang, SuspectsOfWhomNobodyWaitsAreNamed) {
  Rank zero(0), one(1);
  for (Rank* rank : {&zero, &one}) rank->event("submitted", "a", 1).event("completed", "a", 1);
  zero.event("suspect", "a", 0, 6).event("suspect", "a", 0, 4).event("alive", "a", 0, 4);
  const Verdict verdict = find_cause({zero.made, one.made});
  EXPECT_EQ(verdict.cause, "suspect");
  EXPECT_THAT(verdict.guilty, ElementsAre(6));
}

// Rank 4 was stopped before it could see that rank 6 goes on.
TEST(TraceHang, WhatARankReportedBeforeItWasStoppedIsNotBelieved) {
  Rank zero(0), four(4);
  for (Rank* rank : {&zero, &four}) rank->event("submitted", "a", 1).event("completed", "a", 1);
  four.event("suspect", "a", 0, 6);
  zero.event("suspect", "a", 0, 6).event("alive", "a", 0, 6);
  zero.event("suspect", "a", 0, 4).made.events.back().stopped = true;
  const Verdict verdict = find_cause({zero.made, four.made});
  EXPECT_EQ(verdict.cause, "suspect");
  EXPECT_THAT(verdict.guilty, ElementsAre(4));
}

// The times are as far apart as the reader of recordings lets through (record/recording.cpp), and
// their sum exceeds 64 bits.
TEST(TimelinePage, SumsOfLongWaits) {
  Rank zero(0);
  for (uint64_t i = 1; i <= 4; i++)
    zero.event("submitted", "a", i)
        .event("blocked", "a", i, 1)
        .event("completed", "a", i)
        .made.events.back()
        .at_ns = int64_t{1} << 62;
  const std::string page = timeline_page({zero.made}, 1e300);
  EXPECT_THAT(page, HasSubstr("4 operations"));
  EXPECT_THAT(page, testing::Not(HasSubstr("-4611686")));
  EXPECT_THAT(page, HasSubstr("18446744073709.5"));  // ms of waiting
}

// Rank 1 is not idle before its first known event: its older events were overwritten.
TEST(TimelinePage, SaysWhereOlderEventsWereOverwritten) {
  Rank zero(0), one(1);
  for (Rank* rank : {&zero, &one}) rank->event("submitted", "a", 1).event("completed", "a", 1);
  for (Event& event : one.made.events) event.at_ns += 1'000'000;
  const std::string whole = timeline_page({zero.made, one.made}, 0);
  EXPECT_THAT(whole, testing::Not(HasSubstr("overwritten")));
  one.made.overwritten = 12;
  const std::string page = timeline_page({zero.made, one.made}, 0);
  EXPECT_THAT(page, HasSubstr("12 older events of rank 1 were overwritten"));
  EXPECT_THAT(page, HasSubstr(" 12 older events were overwritten: FSCCL_TRACE_EVENTS keeps more"));
}

}  // namespace
}  // namespace fsccl::trace
