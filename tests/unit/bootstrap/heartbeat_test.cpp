// Tests the rules of heartbeats with a simulated clock and simulated ranks: which ranks count as
// silent, when, and which ranks hear of it.
#include "bootstrap/heartbeat.h"
#include "fsccl/insight.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace fsccl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
constexpr int64_t kMs = 1'000'000;
constexpr HeartbeatTimes kTimes{100 * kMs, 400 * kMs, 2000 * kMs, 1500 * kMs};

// Ranks in a row, each next to the one before and the one after; the watcher is rank 0.
struct Row final : Senses {
  explicit Row(int32_t ranks)
      : beats(static_cast<size_t>(ranks)), states(beats.size(), 0), owes(beats.size()) {}
  std::vector<int32_t> next_to(int32_t rank) override {
    std::vector<int32_t> ranks;
    for (const int32_t next : {rank - 1, rank + 1})
      if (next >= 0 && next < static_cast<int32_t>(beats.size())) ranks.push_back(next);
    return ranks;
  }
  Beat last_beat(int32_t rank) override {
    const int64_t at = beats[static_cast<size_t>(rank)];
    return {static_cast<uint64_t>(at), now - at, rank == gone};
  }
  char state(int32_t rank) override { return states[static_cast<size_t>(rank)]; }
  bool host_silent(int32_t rank, int64_t ns) override {
    return owes[static_cast<size_t>(rank)] >= ns;
  }
  // Lets time pass in steps of one beat. In each step the ranks of `beating` beat, and the watcher
  // looks.
  void pass(Heart& heart, int64_t ms, const std::vector<int32_t>& beating) {
    for (int64_t end = now + ms * kMs; now < end;) {
      now += 100 * kMs;
      for (const int32_t rank : beating) beats[static_cast<size_t>(rank)] = now - kMs;
      last = heart.look(now, *this);
    }
  }
  int64_t now = 1'000'000 * kMs;
  int32_t gone = -1;
  std::vector<int64_t> beats;
  std::vector<char> states;
  std::vector<int64_t> owes;
  Heart::Findings last;
};

TEST(Heartbeat, SilenceMakesASuspectAndABeatEndsIt) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 500, {1});
  // The watcher wants to look again when rank 1 is overdue: 400 ms after a beat that is 1 ms old.
  EXPECT_EQ(row.last.next_ns, row.now + 399 * kMs);
  row.pass(heart, 300, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  EXPECT_THAT(heart.changes(row.now), IsEmpty());
  row.now = row.last.next_ns;
  row.states[1] = 'T';
  heart.look(row.now, row);
  const PeerLife life = heart.life(1, row.now);
  EXPECT_EQ(life.state, FSCCL_PEER_SUSPECT);
  EXPECT_EQ(life.silent_ms, 400);
  EXPECT_TRUE(life.stopped);
  EXPECT_EQ(heart.changes(row.now).size(), 1u);
  EXPECT_THAT(heart.changes(row.now), IsEmpty());
  row.pass(heart, 100, {1});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  const auto changes = heart.changes(row.now);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].life.state, FSCCL_PEER_ALIVE);
}

TEST(Heartbeat, WhoHasNotBegunIsNotSilent) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 60'000, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  EXPECT_THAT(row.last.dead, IsEmpty());
}

TEST(Heartbeat, LongSilenceIsDeath) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  row.pass(heart, 1900, {});
  EXPECT_THAT(row.last.dead, IsEmpty());
  row.pass(heart, 200, {});
  EXPECT_THAT(row.last.dead, ElementsAre(1));
  heart.lost(1, false, row.now);
  // The silence of a lost rank does not grow any more.
  EXPECT_NEAR(static_cast<double>(heart.life(1, row.now + 5000 * kMs).silent_ms), 2000, 101);
  // This beat comes too late.
  row.pass(heart, 100, {1});
  EXPECT_THAT(heart.news_for(7, row.now), IsEmpty());

  HeartbeatTimes patient = kTimes;
  patient.dead_ns = 0;
  Row other(2);
  Heart never(patient, 0);
  other.pass(never, 200, {1});
  other.pass(never, 600'000, {});
  EXPECT_THAT(other.last.dead, IsEmpty());
}

TEST(Heartbeat, AWatcherThatWasAwayBlamesNobody) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 500, {1});
  row.now += 3'600'000 * kMs;  // the watcher and all other ranks are stopped for an hour
  row.last = heart.look(row.now, row);
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  EXPECT_THAT(row.last.dead, IsEmpty());
  row.pass(heart, 100, {1});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  // A watcher that is itself late again and again still notices a rank that is silent all the
  // while.
  for (int i = 0; i < 4; i++) row.last = heart.look(row.now += 1000 * kMs, row);
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_SUSPECT);
}

TEST(Heartbeat, WhoRunsIsNotSilent) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  row.states[1] = 'R';
  row.pass(heart, 60'000, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  EXPECT_THAT(row.last.dead, IsEmpty());
  row.states[1] = 'D';
  row.pass(heart, 400, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  row.pass(heart, 400, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_SUSPECT);
  EXPECT_FALSE(heart.life(1, row.now).stopped);
}

TEST(Heartbeat, WhoHasEndedIsDeadAndWhoHasLeftIsNot) {
  Row row(4);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  row.states[1] = 'X';
  row.pass(heart, 300, {});
  EXPECT_THAT(row.last.dead, IsEmpty());  // so early, only the links can tell
  row.pass(heart, 100, {});
  EXPECT_THAT(row.last.dead, ElementsAre(1));
  heart.lost(1, false, row.now);
  row.states[2] = 'X';  // the process of rank 2 has never been visible
  row.pass(heart, 200, {2});
  row.pass(heart, 500, {});
  EXPECT_THAT(row.last.dead, IsEmpty());
  EXPECT_EQ(heart.life(2, row.now).state, FSCCL_PEER_SUSPECT);
  row.states[2] = 'Z';
  row.pass(heart, 100, {});
  EXPECT_THAT(row.last.dead, ElementsAre(2));
  row.gone = 2;
  row.pass(heart, 100, {});
  EXPECT_THAT(row.last.left, ElementsAre(2));
  EXPECT_EQ(heart.life(2, row.now).state, FSCCL_PEER_ALIVE);
}

TEST(Heartbeat, AMarkOfTheFutureOrThePastIsJustAMark) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  row.beats[1] = row.now + 1'000'000 * kMs;  // the time of another clock than the watcher's
  row.pass(heart, 100, {});
  row.pass(heart, 300, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
  row.pass(heart, 100, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_SUSPECT);
  row.beats[1] = 1;
  row.pass(heart, 100, {});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_ALIVE);
}

TEST(Heartbeat, BehindASilentRankTheNextOnesAreWatched) {
  Row row(5);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1, 2, 3, 4});
  row.pass(heart, 1500, {3, 4});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_SUSPECT);
  EXPECT_EQ(heart.life(2, row.now).state, FSCCL_PEER_SUSPECT);
  EXPECT_EQ(heart.life(3, row.now).state, FSCCL_PEER_ALIVE);
  row.pass(heart, 200, {1, 2, 3, 4});
  for (const int32_t rank : {1, 2}) EXPECT_EQ(heart.life(rank, row.now).state, FSCCL_PEER_ALIVE);
}

// Rank 2 is alive and sees that rank 3 is silent, but rank 1, which lies between rank 2 and the
// watcher, passes nothing on.
TEST(Heartbeat, WhoLivesBehindASilentRankTellsNothing) {
  Row row(5);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1, 2, 3, 4});
  row.pass(heart, 1500, {2, 4});
  EXPECT_EQ(heart.life(1, row.now).state, FSCCL_PEER_SUSPECT);
  EXPECT_EQ(heart.life(2, row.now).state, FSCCL_PEER_ALIVE);
  EXPECT_EQ(heart.life(3, row.now).state, FSCCL_PEER_SUSPECT);
  EXPECT_EQ(heart.life(4, row.now).state, FSCCL_PEER_ALIVE);
}

TEST(Heartbeat, AHostIsLostWhenItOwesAnAnswer) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  row.pass(heart, 1800, {});
  EXPECT_THAT(row.last.cut_off, IsEmpty());  // the process is silent, but its system answers
  row.owes[1] = 1500 * kMs;
  row.pass(heart, 100, {});
  EXPECT_THAT(row.last.cut_off, ElementsAre(1));
  heart.lost(1, true, row.now);
  EXPECT_TRUE(heart.life(1, row.now).host_lost);
  EXPECT_THAT(describe(heart.life(1, row.now)), ::testing::HasSubstr("FSCCL_HOST_LOST_MS"));
}

TEST(Heartbeat, ANeighbourIsToldWhatComesFromElsewhere) {
  Row row(2);
  Heart heart(kTimes, 0);
  row.pass(heart, 200, {1});
  // Rank 1 reports about rank 0, too, but this rank is rank 0 and knows better.
  heart.told(1, {{7, 500, true}, {0, 900, false}}, row.now);
  heart.told(2, {{7, 800, false}, {8, 450, false}}, row.now);
  EXPECT_EQ(heart.life(7, row.now).silent_ms, 800);
  EXPECT_TRUE(heart.life(7, row.now).stopped);
  EXPECT_EQ(heart.life(0, row.now).state, FSCCL_PEER_ALIVE);
  const auto ranks_of = [](const std::vector<Silent>& silent) {
    std::vector<int32_t> ranks;
    for (const Silent& one : silent) ranks.push_back(one.rank);
    return ranks;
  };
  EXPECT_THAT(ranks_of(heart.news_for(1, row.now)), ElementsAre(7, 8));
  EXPECT_THAT(ranks_of(heart.news_for(2, row.now)), ElementsAre(7));
  EXPECT_THAT(ranks_of(heart.news_for(3, row.now)), ElementsAre(7, 8));
  heart.told(2, {}, row.now);
  EXPECT_THAT(ranks_of(heart.news_for(1, row.now)), IsEmpty());
  EXPECT_THAT(ranks_of(heart.news_for(2, row.now)), ElementsAre(7));
  heart.lost(1, false, row.now);  // the watcher forgets what rank 1 told of others
  EXPECT_THAT(ranks_of(heart.news_for(2, row.now)), IsEmpty());
}

// Three ranks in a circle tell each other of a silence of rank 7, which none of them sees itself.
// The rumour must end.
TEST(Heartbeat, ARumourEndsAlsoInACircle) {
  Row row(1);
  std::vector<Heart> circle;
  for (int32_t rank = 0; rank < 3; ++rank) circle.emplace_back(kTimes, rank);
  circle[0].told(9, {{7, 500, false, 1}}, row.now);
  const auto suspected = [&] {
    return std::any_of(circle.begin(), circle.end(), [&](const Heart& heart) {
      return heart.life(7, row.now).state == FSCCL_PEER_SUSPECT;
    });
  };
  const auto round = [&] {
    for (int32_t rank = 0; rank < 3; ++rank) {
      const int32_t next = (rank + 1) % 3;
      circle[static_cast<size_t>(next)].told(
          rank, circle[static_cast<size_t>(rank)].news_for(next, row.now), row.now);
    }
  };
  round();
  EXPECT_TRUE(circle[2].life(7, row.now).state == FSCCL_PEER_SUSPECT);
  circle[0].told(9, {}, row.now);
  for (int i = 0; i < 40; ++i) round();
  EXPECT_FALSE(suspected());
}

TEST(Heartbeat, TimesOfTheSettings) {
  Config settings;
  settings.heartbeat_ms = 100, settings.suspect_ms = 50, settings.dead_ms = 60;
  const HeartbeatTimes times = heartbeat_times(settings);
  EXPECT_EQ(times.suspect_ns, 200 * kMs);  // one lost beat makes no suspect
  EXPECT_EQ(times.dead_ns, 200 * kMs);
  EXPECT_EQ(times.host_lost_ns, 0);
}

}  // namespace
}  // namespace fsccl
