// Tests slots that several streams use. Each grant of the collective region is checked at once, by
// the rules of step_valid.h.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <vector>

#include "allocators/placement/collective_region.h"
#include "step_events.h"
#include "stream_step.h"

namespace fsccl {
namespace {

constexpr uint64_t kRegionPage = CollectiveRegion::kAlignment;

// Feeds events to a region, and follows the streams with vector clocks. A stream that gets bytes
// must be ordered behind all earlier work on them.
class StreamDriver {
 public:
  explicit StreamDriver(bool record, uint64_t pages = 1 << 14)
      : region(pages * kRegionPage, record, kStreams), users_(pages), known_(kStreams) {}

  void step(const std::vector<StepEvent>& events) {
    for (const StepEvent& event : events) {
      apply(event);
      if (testing::Test::HasFatalFailure()) return;
    }
    region.end_step();
  }

  CollectiveRegion region;
  uint64_t waits = 0;

 private:
  using Clock = std::vector<uint64_t>;  // per stream, the last piece of its work that is complete
  struct Held {
    uint64_t first, end;
  };
  void apply(const StepEvent& event) {
    ++position_;
    switch (event.op) {
      case StepOp::kTake:
        return take(event);
      case StepOp::kGiveBack:
        ASSERT_TRUE(region.give_back(event.key, position_).ok());
        held_.erase(event.key);
        return;
      case StepOp::kUse:
        ASSERT_TRUE(region.use(event.key, event.stream).ok());
        return work(held_.at(event.key), event.stream);
      case StepOp::kRecord:
        ASSERT_TRUE(region.record(event.key, event.stream).ok());
        recorded_[event.key] = known_[event.stream];
        return;
      case StepOp::kWait:
        ASSERT_TRUE(region.wait(event.key, event.stream).ok());
        return merge(known_[event.stream], recorded_[event.key]);
    }
  }
  void take(const StepEvent& event) {
    Result<SlotGrant> grant =
        region.take(event.key, event.bytes, event.stable, position_, event.stream);
    ASSERT_TRUE(grant.ok()) << grant.status().text();
    waits += static_cast<uint64_t>(std::popcount(grant.value().waits));
    for (uint32_t s = 0; s < kStreams; ++s)
      if (grant.value().waits >> s & 1) merge(known_[event.stream], known_[s]);
    const Held slot{grant.value().offset / kRegionPage,
                    (grant.value().offset + event.bytes) / kRegionPage};
    for (const auto& [key, other] : held_)
      ASSERT_FALSE(slot.first < other.end && other.first < slot.end) << "granted twice";
    for (uint64_t page = slot.first; page < slot.end; ++page)
      for (size_t s = 0; s < users_[page].size(); ++s)
        ASSERT_LE(users_[page][s], at(known_[event.stream], s))
            << "page " << page << " is still used on stream " << s;
    held_.emplace(event.key, slot);
    work(slot, event.stream);
  }
  void work(const Held& slot, uint32_t stream) {
    Clock& known = known_[stream];
    known.resize(kStreams, 0);
    ++known[stream];
    for (uint64_t page = slot.first; page < slot.end; ++page) {
      users_[page].resize(kStreams, 0);
      users_[page][stream] = known[stream];
    }
  }
  static uint64_t at(const Clock& clock, size_t s) { return s < clock.size() ? clock[s] : 0; }
  static void merge(Clock& into, const Clock& from) {
    into.resize(kStreams, 0);
    for (size_t s = 0; s < from.size(); ++s) into[s] = std::max(into[s], from[s]);
  }

  uint64_t position_ = 0;
  std::vector<Clock> users_, known_;
  std::map<uint64_t, Clock> recorded_;
  std::map<uint64_t, Held> held_;
};

std::vector<uint64_t> sizes() {
  return transformer(70 * kRegionPage, 40 * kRegionPage, 12, 55 * kRegionPage);
}

TEST(StreamRegion, ADeclaredStepNeedsTheBoundAndAddsNoWait) {
  const std::vector<StepEvent> events = StreamStep(sizes()).build();
  StreamDriver driver(false);
  ASSERT_TRUE(driver.region.declare(events).ok());
  for (int i = 0; i < 6; ++i) driver.step(events);
  EXPECT_TRUE(driver.region.by_table());
  EXPECT_EQ(driver.region.misses(), 0U);
  EXPECT_EQ(driver.waits, 0U);
  EXPECT_EQ(driver.region.added_waits(), 0U);
  EXPECT_LE(static_cast<double>(driver.region.extent()),
            1.01 * static_cast<double>(driver.region.plan_clique_bound()));
}

TEST(StreamRegion, ARecordedStepIsServedFromTheTable) {
  const std::vector<StepEvent> events = StreamStep(sizes()).build();
  StreamDriver driver(true);
  for (int i = 0; i < 6; ++i) driver.step(events);
  EXPECT_TRUE(driver.region.by_table());
  EXPECT_EQ(driver.waits, 0U);
}

TEST(StreamRegion, AMissingEdgeLeavesThePlanAndIsStillSafe) {
  const std::vector<StepEvent> events = StreamStep(sizes()).build();
  for (size_t at = 0; at < events.size(); at += 7) {
    StreamDriver driver(false);
    ASSERT_TRUE(driver.region.declare(events).ok());
    for (int i = 0; i < 4; ++i) driver.step(events);
    std::vector<StepEvent> other = events;
    while (at < other.size() && other[at].moves_slot()) ++at;
    if (at >= other.size()) break;
    other.erase(other.begin() + static_cast<std::ptrdiff_t>(at));
    for (int i = 0; i < 2; ++i) driver.step(other);
    for (int i = 0; i < 4; ++i) driver.step(events);
    ASSERT_FALSE(HasFatalFailure()) << "event " << at;
  }
}

TEST(StreamRegion, RandomStepsStaySafe) {
  std::mt19937_64 random(17);
  for (int round = 0; round < 60; ++round) {
    const std::vector<StepEvent> one = random_stream_step(random, 60, kRegionPage),
                                 two = random_stream_step(random, 60, kRegionPage);
    StreamDriver driver(true);
    for (int i = 0; i < 16; ++i) driver.step(random() % 3 == 0 ? two : one);
    for (int i = 0; i < 5; ++i) driver.step(one);
    ASSERT_FALSE(HasFatalFailure()) << "round " << round;
  }
}

TEST(StreamRegion, KnownStepsFollowEachOtherWithoutAWait) {
  std::vector<uint64_t> fewer = sizes();
  fewer.erase(fewer.begin() + 3);
  const std::vector<std::vector<StepEvent>> steps = {StreamStep(sizes()).build(),
                                                     StreamStep(fewer).build()};
  for (const bool joined : {true, false}) {
    StreamDriver driver(false);
    std::vector<std::vector<StepEvent>> kinds = steps;
    if (!joined)  // the last events order the streams for the next step
      for (std::vector<StepEvent>& step : kinds) step.resize(step.size() - 4);
    for (const auto& step : kinds) ASSERT_TRUE(driver.region.declare(step).ok());
    std::mt19937_64 random(3);
    for (int i = 0; i < 40; ++i) driver.step(kinds[random() % 2]);
    EXPECT_EQ(driver.region.by_table(), joined);  // else not all steps begin in one state
    EXPECT_EQ(driver.region.misses(), 0U);
    EXPECT_EQ(driver.waits, 0U);
    ASSERT_FALSE(HasFatalFailure());
  }
}

TEST(StreamRegion, MistakesAreErrors) {
  CollectiveRegion region(kRegionPage * 16, false, 2);
  EXPECT_EQ(region.take(1, kRegionPage, false, 1, 2).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(region.record(1, 2).code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(region.use(1, 0).code(), FSCCL_ERR_INVALID_STATE);
  ASSERT_TRUE(region.take(1, kRegionPage, false, 2, 1).ok());
  EXPECT_TRUE(region.use(1, 0).ok());
  EXPECT_EQ(region.declare({{.stream = 3, .key = 2, .bytes = kRegionPage}}).code(),
            FSCCL_ERR_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace fsccl
