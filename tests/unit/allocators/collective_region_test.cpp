#include "allocators/placement/collective_region.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "region_driver.h"

namespace fsccl {
namespace {

TEST(CollectiveRegion, ARecordedStepBecomesTheDeclaredPlan) {
  const std::vector<StepEvent> events = model_step();
  Driver recorded(true), declared(false);
  ASSERT_TRUE(declared.region.declare(events).ok());
  EXPECT_GT(declared.region.plan_bytes(), 0U);
  EXPECT_EQ(recorded.region.plan_bytes(), 0U);
  recorded.step(events);
  declared.step(events);
  EXPECT_EQ(recorded.region.plan_bytes(), declared.region.plan_bytes());
  EXPECT_EQ(recorded.region.plan_bound(), declared.region.plan_bound());
  EXPECT_EQ(recorded.region.misses(), 0U);  // no plan, nothing missed
  for (int i = 0; i < 3; ++i) EXPECT_EQ(recorded.offsets_of(events), declared.offsets_of(events));
  EXPECT_EQ(declared.region.hits(), 4 * takes_in(events));
  EXPECT_EQ(recorded.region.hits(), 3 * takes_in(events));
  EXPECT_EQ(declared.region.misses(), 0U);
}

TEST(CollectiveRegion, PlannedStepsNeedTheBoundAndNoMore) {
  const std::vector<StepEvent> events =
      step_events({.unit_bytes = transformer(8 * kPage, 8 * kPage, 20, 8 * kPage)});
  Driver driver(false);
  ASSERT_TRUE(driver.region.declare(events).ok());
  for (int i = 0; i < 3; ++i) driver.step(events);
  EXPECT_EQ(driver.region.plan_bound(), 4 * 8 * kPage);
  EXPECT_EQ(driver.region.plan_bytes(), driver.region.plan_bound());
  EXPECT_EQ(driver.region.extent(), driver.region.plan_bound());
  EXPECT_EQ(driver.region.peak(), driver.region.plan_bound());
  EXPECT_EQ(driver.region.live(), 0U);
}

// A step may leave its table at any event. The region still knows which pages each slot has and at
// which position they were given back.
TEST(CollectiveRegion, ATableIsLeftAtAnyEvent) {
  const std::vector<StepEvent> events =
      step_events({.unit_bytes = transformer(3 * kPage, 5 * kPage, 6, 4 * kPage), .prefetch = 1});
  constexpr uint64_t kForeign = 777;
  for (size_t at = 0; at <= events.size(); ++at) {
    Driver driver(false);
    ASSERT_TRUE(driver.region.declare(events).ok());
    for (int i = 0; i < 2; ++i) {
      EXPECT_FALSE(driver.region.by_table());
      driver.step(events);
    }
    const std::vector<uint64_t> planned = driver.offsets_of(events);
    EXPECT_TRUE(driver.region.by_table());
    EXPECT_EQ(driver.region.misses(), 0U);
    driver.run({events.begin(), events.begin() + static_cast<std::ptrdiff_t>(at)});
    EXPECT_TRUE(driver.region.by_table());
    driver.apply(take_event(kForeign, 7, false));
    EXPECT_FALSE(driver.region.by_table());
    driver.run({events.begin() + static_cast<std::ptrdiff_t>(at), events.end()});
    driver.apply(give_event(kForeign));
    driver.region.end_step();
    for (int i = 0; i < 2; ++i) EXPECT_EQ(driver.offsets_of(events), planned);
    EXPECT_TRUE(driver.region.by_table());
    EXPECT_EQ(driver.region.live(), 0U);
    driver.run({events.begin(), events.begin() + static_cast<std::ptrdiff_t>(at)});
    driver.region.end_step();  // the step ends early
    EXPECT_EQ(driver.region.by_table(), at == 0 || at == events.size());
    if (testing::Test::HasFailure()) FAIL() << "left at event " << at;
  }
}

// The table contains a slot that is held across the boundary of steps, too.
TEST(CollectiveRegion, ATableKnowsWhatTheStepBeforeLeft) {
  const std::vector<StepEvent> first = {take_event(1, 4), take_event(2, 4), give_event(1)};
  const std::vector<StepEvent> rest = {take_event(3, 4, false), give_event(2),    take_event(1, 4),
                                       give_event(3),           take_event(2, 4), give_event(1)};
  Driver driver(true);
  driver.step(first);
  for (int i = 0; i < 6; ++i) driver.step(rest);
  EXPECT_TRUE(driver.region.by_table());
  EXPECT_TRUE(driver.region.holds(2));
  EXPECT_FALSE(driver.region.holds(1));
  driver.run({rest[0], rest[1]});
  EXPECT_FALSE(driver.region.holds(2));
  EXPECT_TRUE(driver.region.holds(3));
  EXPECT_FALSE(driver.region.take(3, kPage, false, 1000).ok());  // held already
  EXPECT_FALSE(driver.region.by_table());
}

TEST(CollectiveRegion, AStepThatNeverEndsIsNotRemembered) {
  CollectiveRegion region(kCapacity, true);
  uint64_t position = 0;
  for (size_t i = 0; i < CollectiveRegion::kMostEvents; ++i) {
    ASSERT_TRUE(region.take(1, kPage, true, ++position).ok());
    ASSERT_TRUE(region.give_back(1, ++position).ok());
  }
  region.end_step();
  EXPECT_EQ(region.plan_bytes(), 0U);
  for (int step = 0; step < 2; ++step) {
    ASSERT_TRUE(region.take(1, kPage, true, ++position).ok());
    ASSERT_TRUE(region.give_back(1, ++position).ok());
    region.end_step();
  }
  EXPECT_EQ(region.plan_bytes(), kPage);
}

TEST(CollectiveRegion, ADeclaredStepThatIsTooLongIsRefused) {
  CollectiveRegion region(kCapacity, false);
  std::vector<StepEvent> events;
  for (size_t i = 0; i < CollectiveRegion::kMostEvents / 2; ++i) {
    events.push_back(take_event(i % 7, 1));
    events.push_back(give_event(i % 7));
  }
  EXPECT_TRUE(region.declare(events).ok());
  EXPECT_EQ(region.plan_bytes(), kPage);
  events.push_back(take_event(1, 1));
  const Status status = region.declare(events);
  EXPECT_EQ(status.code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_NE(status.text().find("the schedule has 262145 events, at most 262144"), std::string::npos)
      << status.text();
}

TEST(CollectiveRegion, StableKeysHaveOneOffset) {
  const std::vector<StepEvent> events = model_step(2);
  Driver declared(false), recorded(true);
  ASSERT_TRUE(declared.region.declare(events).ok());
  recorded.step(events);
  recorded.offsets_of_key.clear();  // the promise holds from the second step on
  for (int i = 0; i < 3; ++i) {
    declared.step(events);
    recorded.step(events);
  }
  for (const auto& [key, offsets] : declared.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
  for (const auto& [key, offsets] : recorded.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
  EXPECT_EQ(declared.moves, 0U);
}

TEST(CollectiveRegion, AGrantSaysThatAStableKeyMoved) {
  Driver driver(true);
  driver.run({take_event(1, 4), give_event(1), take_event(2, 1), take_event(1, 4)});
  EXPECT_EQ(driver.moves, 1U);
  driver.run({give_event(1), take_event(1, 4)});
  EXPECT_EQ(driver.moves, 1U);
}

TEST(CollectiveRegion, AStableKeyStaysWhereTheDeviatingStepPutIt) {
  Driver driver(false);
  const std::vector<StepEvent> planned = {take_event(1, 2), give_event(1),    take_event(2, 2),
                                          give_event(2),    take_event(1, 2), give_event(1)};
  ASSERT_TRUE(driver.region.declare(planned).ok());
  EXPECT_EQ(driver.region.plan_bytes(), 2 * kPage);
  // Slot 2 is placed where slot 1 belongs. Afterwards that place is free, but slot 1 had another
  // one in this step.
  driver.step({take_event(2, 2), take_event(1, 2), give_event(2), give_event(1), take_event(1, 2),
               give_event(1)});
  EXPECT_EQ(driver.offsets, (std::vector<uint64_t>{0, 2 * kPage, 2 * kPage}));
  EXPECT_EQ(driver.moves, 0U);
  EXPECT_EQ(driver.offsets_of(planned), (std::vector<uint64_t>{0, 0, 0}));
}

TEST(CollectiveRegion, AnEvaluationStepUsesThePlannedOffsets) {
  const std::vector<uint64_t> model = transformer(40 * kPage, 17 * kPage, 12, 41 * kPage);
  const std::vector<StepEvent> train = step_events({.unit_bytes = model}),
                               evaluate = step_events({.unit_bytes = model, .backward = false});
  Driver driver(true);
  driver.step(train);
  driver.offsets_of_key.clear();
  driver.step(train);
  const uint64_t misses = driver.region.misses(), extent = driver.region.extent();
  driver.step(evaluate);
  driver.step(train);
  EXPECT_EQ(driver.region.misses(), misses);
  EXPECT_EQ(driver.region.extent(), extent);
  for (const auto& [key, offsets] : driver.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
}

TEST(CollectiveRegion, AnExtraRequestLeavesStableOffsetsAlone) {
  const std::vector<StepEvent> events = model_step();
  for (size_t at = 0; at < events.size(); ++at) {
    Driver driver(false);
    ASSERT_TRUE(driver.region.declare(events).ok());
    std::vector<StepEvent> longer = events;
    longer.insert(longer.begin() + static_cast<int64_t>(at), take_event(999, 5, false));
    longer.push_back(give_event(999));
    driver.step(events);
    driver.step(longer);
    driver.step(events);
    EXPECT_GE(driver.region.misses(), 1U);
    EXPECT_LE(driver.region.misses(), 8U);  // the extra one, and gradients whose places it took
    for (const auto& [key, offsets] : driver.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
  }
}

TEST(CollectiveRegion, KeptSlotsStayAcrossStepsAndReplans) {
  // Unit 7 is taken in the first step and kept; unit 1 is fetched at the end of a step for the next
  // one.
  const std::vector<StepEvent> first = {take_event(1, 3), take_event(7, 2), give_event(1),
                                        take_event(2, 5), give_event(2),    take_event(1, 3)};
  const std::vector<StepEvent> next = {give_event(1), take_event(2, 5), give_event(2),
                                       take_event(1, 3)};
  Driver driver(true);
  driver.step(first);
  EXPECT_TRUE(driver.region.holds(7));
  EXPECT_TRUE(driver.region.holds(1));
  driver.offsets_of_key.clear();
  for (int i = 0; i < 3; ++i) driver.step(next);
  EXPECT_EQ(driver.region.hits(), 6U);
  EXPECT_EQ(driver.region.misses(), 0U);
  EXPECT_EQ(driver.offsets_of_key[1].size(), 1U);
  EXPECT_EQ(driver.region.plan_bound(), 7 * kPage);
  // The driver's model of pages would notice if a new plan handed out bytes that are still held.
  const std::vector<StepEvent> other = {give_event(1), take_event(3, 9), take_event(2, 5),
                                        give_event(2), give_event(3),    take_event(1, 3)};
  for (int i = 0; i < 4; ++i) driver.step(other);
  EXPECT_EQ(driver.region.plan_bound(), 16 * kPage);
  EXPECT_EQ(driver.offsets_of_key[1].size(), 1U);
  driver.step({give_event(1), give_event(7)});
  EXPECT_EQ(driver.region.live(), 0U);
}

TEST(CollectiveRegion, APlanIsMadeAroundWhatIsHeld) {
  Driver driver(true);
  // After this step slot 2 is held, and its offset is not 0.
  driver.step({take_event(1, 1, false), take_event(2, 3), give_event(1)});
  const std::vector<StepEvent> events = {take_event(1, 1, false), give_event(2), give_event(1),
                                         take_event(2, 3)};
  ASSERT_TRUE(driver.region.declare(events).ok());
  for (int i = 0; i < 3; ++i) driver.step(events);
  EXPECT_EQ(driver.region.misses(), 0U);
  EXPECT_EQ(driver.offsets_of_key[2], std::set<uint64_t>{kPage});
}

TEST(CollectiveRegion, ADeclaredStepMayTakeWhatItKeeps) {
  const std::vector<StepEvent> first = {take_event(7, 2), take_event(1, 3), give_event(1)},
                               next = {take_event(1, 3), give_event(1)};
  Driver driver(false);
  ASSERT_TRUE(driver.region.declare(first).ok());
  driver.step(first);
  for (int i = 0; i < 3; ++i) driver.step(next);
  EXPECT_EQ(driver.region.misses(), 0U);
  EXPECT_EQ(driver.region.hits(), 5U);
}

TEST(CollectiveRegion, WithoutRecordingOnlyADeclarationPlans) {
  const std::vector<StepEvent> events = model_step();
  Driver driver(false);
  for (int i = 0; i < 3; ++i) driver.step(events);
  EXPECT_EQ(driver.region.plan_bytes(), 0U);
  EXPECT_EQ(driver.region.hits(), 0U);
  ASSERT_TRUE(driver.region.declare(events).ok());
  const uint64_t bytes = driver.region.plan_bytes();
  for (int i = 0; i < 3; ++i) driver.step(model_step(3));
  EXPECT_EQ(driver.region.plan_bytes(), bytes);
}

TEST(CollectiveRegion, RandomHistoriesAgreeOnTwoRanks) {
  for (const uint64_t seed : {1U, 2U, 3U}) {
    std::mt19937_64 random(seed);
    Driver one(true, 200 * kPage), two(true, 200 * kPage);
    std::set<uint64_t> held;
    uint64_t refusals = 0;
    for (int i = 0; i < 6000; ++i) {
      const uint64_t key = random() % 40;
      const bool wrong_side = held.contains(key);
      const StepEvent event =
          wrong_side ? give_event(key) : take_event(key, 1 + random() % 15, key % 2 == 0);
      if (random() % 100 == 0) {
        one.region.end_step();
        two.region.end_step();
      }
      one.apply(event);
      two.apply(event);
      ASSERT_EQ(one.refused, two.refused);
      refusals += event.takes() && one.refused;
      if (!event.takes()) held.erase(key);
      if (event.takes() && !one.refused) held.insert(key);
    }
    EXPECT_GT(refusals, 0U);
    EXPECT_EQ(one.offsets, two.offsets);
    EXPECT_EQ(one.region.hash(), two.region.hash());
    EXPECT_EQ(one.region.extent(), two.region.extent());
  }
}

TEST(CollectiveRegion, RandomStepsThatRepeatAndDeviateStayCorrect) {
  for (const uint64_t seed : {1U, 2U, 3U, 4U}) {
    std::mt19937_64 random(seed);
    Driver driver(true);
    std::vector<std::vector<StepEvent>> steps;
    for (int i = 0; i < 4; ++i) {
      StepShape shape{.prefetch = static_cast<int>(random() % 3), .backward = random() % 4 != 0};
      for (int unit = 0; unit < 8; ++unit)
        shape.unit_bytes.push_back((1 + random() % 20) * kPage - random() % 100);
      steps.push_back(step_events(shape));
    }
    for (int i = 0; i < 25; ++i) {
      std::vector<StepEvent> events = steps[random() % steps.size()];
      for (uint64_t repeat = 0; repeat <= random() % 3; ++repeat) driver.step(events);
    }
    EXPECT_GT(driver.region.hits(), 0U);
    EXPECT_GT(driver.region.misses(), 0U);
    EXPECT_EQ(driver.region.live(), 0U);
  }
}

TEST(CollectiveRegion, TheHashTellsHistoriesApart) {
  const auto hash_of = [](const std::vector<StepEvent>& events, bool end = false) {
    CollectiveRegion region(kCapacity, true);
    uint64_t position = 0;
    for (const StepEvent& event : events) {
      ++position;
      if (event.takes()) {
        EXPECT_TRUE(region.take(event.key, event.bytes, event.stable, position).ok());
      } else {
        EXPECT_TRUE(region.give_back(event.key, position).ok());
      }
    }
    if (end) region.end_step();
    return region.hash();
  };
  const std::set<uint64_t> hashes = {hash_of({}),
                                     hash_of({take_event(1, 1)}),
                                     hash_of({take_event(2, 1)}),
                                     hash_of({take_event(1, 2)}),
                                     hash_of({take_event(1, 1), take_event(2, 1)}),
                                     hash_of({take_event(2, 1), take_event(1, 1)}),
                                     hash_of({take_event(1, 1), give_event(1)}),
                                     hash_of({take_event(1, 1), give_event(1)}, true)};
  EXPECT_EQ(hashes.size(), 8U);
  EXPECT_EQ(hash_of(model_step(), true), hash_of(model_step(), true));
}

TEST(CollectiveRegion, TheHashCoversOffsets) {
  CollectiveRegion one(kCapacity, false), two(kCapacity, false);
  ASSERT_TRUE(
      one.declare({take_event(1, 1, false), take_event(2, 4, false), give_event(1), give_event(2)})
          .ok());
  const uint64_t offset_one = one.take(1, kPage, false, 1).value().offset,
                 offset_two = two.take(1, kPage, false, 1).value().offset;
  ASSERT_NE(offset_one, offset_two);
  EXPECT_NE(one.hash(), two.hash());
}

TEST(CollectiveRegion, MistakesAreErrorsThatChangeNothing) {
  CollectiveRegion region(10 * kPage, true);
  ASSERT_TRUE(region.take(1, 4 * kPage, true, 1).ok());
  const uint64_t hash = region.hash();
  EXPECT_EQ(region.take(1, kPage, true, 2).status().code(), FSCCL_ERR_INVALID_STATE);
  EXPECT_EQ(region.give_back(2, 2).code(), FSCCL_ERR_INVALID_STATE);
  EXPECT_EQ(region.take(2, UINT64_MAX, true, 2).status().code(), FSCCL_ERR_INVALID_ARGUMENT);
  const Result<SlotGrant> large = region.take(2, 7 * kPage, true, 2);
  EXPECT_EQ(large.status().code(), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_NE(large.status().text().find("28672 bytes"), std::string::npos) << large.status().text();
  EXPECT_EQ(region.hash(), hash);
  EXPECT_EQ(region.live(), 4 * kPage);
  EXPECT_FALSE(region.holds(2));
  EXPECT_EQ(region.declare({take_event(3, 1), take_event(3, 1)}).code(),
            FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(region.declare({give_event(3)}).code(), FSCCL_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(region.declare({take_event(3, 7), give_event(3)}).code(), FSCCL_ERR_OUT_OF_MEMORY);
  EXPECT_EQ(region.plan_bytes(), 0U);
  EXPECT_EQ(region.take(2, 0, true, 2).value().offset, 4 * kPage);
}

}  // namespace
}  // namespace fsccl
