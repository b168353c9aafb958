#include "tools/trace_hang.h"

#include <gmock/gmock.h>

#include "fsccl/fsccl.h"
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
        static_cast<int>(numbers.try_emplace(communicator, numbers.size() + 1).first->second);
    RecordedCommunicator& known = made.communicators[number];
    known.tag = known.name = communicator;
    known.rank = made.rank;
    if (!known.since_ns) known.since_ns = static_cast<int64_t>(2 * made.events.size() + 1);
    Event& one = made.events.emplace_back();
    one.at_ns = static_cast<int64_t>(2 * made.events.size());
    one.kind = kind;
    one.communicator = number;
    one.peer = peer;
    one.sequence = sequence;
    one.operation = "all_gather";
    return *this;
  }
  Rank& done(const std::string& communicator, uint64_t sequence) {
    return event("submitted", communicator, sequence).event("completed", communicator, sequence);
  }
  Rank& fail(const std::string& communicator, int code, int peer = -1) {
    event("failed", communicator, 0, peer);
    RecordedCommunicator& of = made.communicators[static_cast<int>(numbers.at(communicator))];
    of.error_code = code;
    of.error = "the error of " + communicator;
    return *this;
  }
  Rank& destroy(const std::string& communicator) {
    made.communicators[static_cast<int>(numbers.at(communicator))].lives = false;
    return *this;
  }
  Recording made;
  std::map<std::string, size_t> numbers;
};

Verdict cause_in(const std::vector<Rank>& ranks) {
  std::vector<Recording> job;
  for (const Rank& rank : ranks) job.push_back(rank.made);
  return find_cause(job);
}

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

// Rank 0 keeps a communicator in which it timed out, and goes on with another one. It then does not
// come to an operation of the other one.
TEST(TraceHang, AFailureThatARankWentOnAfterIsNoWait) {
  std::vector<Rank> ranks{Rank(0), Rank(1)};
  for (Rank& rank : ranks) rank.done("world", 1);
  ranks[0].event("submitted", "optional", 1).event("blocked", "optional", 1, 1);
  ranks[0].fail("optional", FSCCL_ERR_TIMEOUT);
  ranks[1].done("optional", 0).event("submitted", "world", 2);
  const Verdict before = cause_in(ranks);
  EXPECT_EQ(before.cause, "cycle") << before.text;
  EXPECT_THAT(before.ranks[0], HasSubstr("operation 1) of 'optional' failed, after"));
  ranks[0].done("world", 2);
  ranks[1].event("completed", "world", 2).event("submitted", "world", 3);
  const Verdict verdict = cause_in(ranks);
  EXPECT_EQ(verdict.cause, "absent") << verdict.text;
  EXPECT_THAT(verdict.guilty, ElementsAre(0));
  EXPECT_THAT(verdict.text, HasSubstr("of 'world'"));
}

// Rank 2 dies, and the others go on with a new communicator. They keep the old one, or destroy it.
TEST(TraceHang, ADeathThatAJobGotOverIsNotBlamed) {
  for (const bool destroyed : {false, true}) {
    std::vector<Rank> ranks{Rank(0), Rank(1), Rank(2)};
    for (Rank& rank : ranks) rank.done("world", 1);
    for (size_t i = 0; i < 2; i++) {
      ranks[i].event("submitted", "world", 2).event("lost", "world", 0, 2);
      ranks[i].fail("world", FSCCL_ERR_PEER_DEAD, 2);
    }
    EXPECT_EQ(cause_in(ranks).cause, "died");
    for (size_t i = 0; i < 2; i++) {
      ranks[i].done("survivors", 1);
      if (destroyed) ranks[i].destroy("world");
    }
    const Verdict well = cause_in(ranks);
    EXPECT_EQ(well.cause, "none") << well.text;
    EXPECT_THAT(well.text, HasSubstr("Rank 2 died earlier"));
    ranks[0].event("submitted", "survivors", 2);
    const Verdict verdict = cause_in(ranks);
    EXPECT_EQ(verdict.cause, "absent") << verdict.text;
    EXPECT_THAT(verdict.guilty, ElementsAre(1));
    EXPECT_THAT(verdict.text, HasSubstr("Rank 2 died earlier"));
  }
}

// The program's handler destroys the communicator of the dead rank, and hangs then. An operation
// that was under way has ended meanwhile.
TEST(TraceHang, ADeathIsBlamedThoughAnotherOperationEndedAfterIt) {
  std::vector<Rank> ranks{Rank(0), Rank(1), Rank(2)};
  for (Rank& rank : ranks) rank.done("world", 1);
  for (size_t i = 0; i < 2; i++) {
    ranks[i].event("submitted", "pair", 1).event("submitted", "world", 2);
    ranks[i].event("lost", "world", 0, 2).fail("world", FSCCL_ERR_PEER_DEAD, 2);
    ranks[i].event("completed", "pair", 1);
    ranks[i].destroy("world");
  }
  const Verdict verdict = cause_in(ranks);
  EXPECT_EQ(verdict.cause, "died") << verdict.text;
  EXPECT_THAT(verdict.guilty, ElementsAre(2));
}

TEST(TraceHang, AMismatchThatAJobGotOverIsNotBlamed) {
  std::vector<Rank> ranks{Rank(0), Rank(1)};
  for (Rank& rank : ranks) {
    rank.event("submitted", "a", 1).made.events.back().count =
        static_cast<uint64_t>(rank.made.rank);
    rank.fail("a", FSCCL_ERR_MISMATCH);
  }
  EXPECT_EQ(cause_in(ranks).cause, "disagree");
  for (Rank& rank : ranks) rank.done("b", 1);
  const Verdict well = cause_in(ranks);
  EXPECT_EQ(well.cause, "none") << well.text;
  EXPECT_THAT(well.text, HasSubstr("'a' failed first on rank 0: the error of a"));
  ranks[0].event("submitted", "b", 2);
  EXPECT_EQ(cause_in(ranks).cause, "absent");
}

// The ranks abort a communicator on purpose and go on. Then rank 2 dies. Rank 1 hears of its death
// from rank 0.
TEST(TraceHang, ADeathAfterAnotherFailureIsSeen) {
  std::vector<Rank> ranks{Rank(0), Rank(1), Rank(2)};
  for (Rank& rank : ranks) {
    rank.done("aborted", 1).fail("aborted", FSCCL_ERR_ABORTED).done("world", 1);
    if (rank.made.rank != 2) rank.event("submitted", "world", 2);
  }
  ranks[1].fail("world", FSCCL_ERR_PEER_DEAD, 2);
  const Verdict heard = cause_in(ranks);
  EXPECT_EQ(heard.cause, "died") << heard.text;
  EXPECT_THAT(heard.guilty, ElementsAre(2));
  ranks[0].event("lost", "world", 0, 2).fail("world", FSCCL_ERR_PEER_DEAD, 2);
  const Verdict verdict = cause_in(ranks);
  EXPECT_THAT(verdict.guilty, ElementsAre(2));
  EXPECT_THAT(verdict.text, HasSubstr("Rank 2 died, as rank(s) 0, 1 saw"));
}

// Ranks 0 and 1 fail, and rank 1 ends without a goodbye. Rank 2, which is in no communicator that
// failed, sees its end.
TEST(TraceHang, TheEndOfARankThatFailedIsNoDeath) {
  std::vector<Rank> ranks{Rank(0), Rank(1), Rank(2)};
  for (size_t i = 0; i < 2; i++) ranks[i].event("submitted", "a", 1).fail("a", FSCCL_ERR_SYSTEM);
  ranks[2].event("submitted", "world", 1).event("lost", "world", 0, 1);
  EXPECT_NE(cause_in(ranks).cause, "died");
}

TEST(TraceHang, ARankThatLeftIsNamed) {
  std::vector<Rank> ranks{Rank(0), Rank(1), Rank(2)};
  for (Rank& rank : ranks) rank.done("world", 1);
  ranks[2].destroy("world");
  for (size_t i = 0; i < 2; i++)
    ranks[i].event("submitted", "world", 2).event("left", "world", 0, 2);
  ranks[0].fail("world", FSCCL_ERR_PEER_DEAD, 2);
  const Verdict verdict = cause_in(ranks);
  EXPECT_EQ(verdict.cause, "left") << verdict.text;
  EXPECT_THAT(verdict.guilty, ElementsAre(2));
  EXPECT_THAT(verdict.text, HasSubstr("Rank 2 has left (destroyed its communicator, or ended) "
                                      "before it called all_gather"));
}

// Two communicators of a rank had no room in the table and have the same number.
TEST(TraceHang, CommunicatorsWithoutAnEntryAreLeftOut) {
  std::vector<Rank> ranks{Rank(0), Rank(1)};
  for (Rank& rank : ranks) rank.numbers["others"] = 0;
  ranks[0].event("submitted", "others", 1);
  ranks[1].event("submitted", "others", 1).made.events.back().count = 5;
  const Verdict verdict = cause_in(ranks);
  EXPECT_EQ(verdict.cause, "none") << verdict.text;
  EXPECT_THAT(verdict.ranks[0], HasSubstr("1 calls are left out"));
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

// Sizes are those of fsccl-perf: a rank's larger buffer, which has a block of each rank.
TEST(TimelinePage, CountsTheBlocksOfAllRanks) {
  Rank zero(0);
  zero.done("a", 1).made.communicators[1].size = 8;
  for (Event& event : zero.made.events) event.count = 1024, event.dtype = "float32";
  for (const auto& [operation, size] :
       {std::pair("all_gather", "32.00 KiB"), std::pair("reduce_scatter", "32.00 KiB"),
        std::pair("all_to_all", "32.00 KiB"), std::pair("all_reduce", "4.00 KiB")}) {
    for (Event& event : zero.made.events) event.operation = operation;
    EXPECT_THAT(timeline_page({zero.made}, 0), HasSubstr(size)) << operation;
  }
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
