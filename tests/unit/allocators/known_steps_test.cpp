// Tests a region that knows several kinds of steps at once.
#include "allocators/placement/known_steps.h"

#include <gtest/gtest.h>

#include <random>

#include "region_driver.h"

namespace fsccl {
namespace {

TEST(KnownSteps, ADeviatingStepIsServedCountedAndKnownFromThenOn) {
  const std::vector<StepEvent> usual = model_step(), other = model_step(3);
  Driver driver(true);
  driver.step(usual);
  driver.step(usual);
  const uint64_t usual_bytes = driver.region.plan_bytes();
  EXPECT_EQ(driver.region.misses(), 0U);
  driver.step(other);
  const uint64_t misses = driver.region.misses(), hits = driver.region.hits();
  EXPECT_GT(misses, 0U);
  EXPECT_GT(driver.region.plan_bytes(), usual_bytes);
  driver.offsets_of_key.clear();
  for (int i = 0; i < 4; ++i) driver.step(i % 2 == 0 ? usual : other);
  EXPECT_EQ(driver.region.misses(), misses);
  EXPECT_EQ(driver.region.hits(), hits + 2 * takes_in(usual) + 2 * takes_in(other));
  for (const auto& [key, offsets] : driver.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
}

// Returns a step of training, one of evaluation, one without gradients, one of a shorter model, and
// one of other sizes. Tests run them in any order.
std::vector<std::vector<StepEvent>> kinds_of_step() {
  const std::vector<uint64_t> model = transformer(40 * kPage, 17 * kPage, 12, 41 * kPage);
  std::vector<uint64_t> shorter = model, wider = model;
  shorter.pop_back();
  wider.back() = 45 * kPage;
  return {step_events({.unit_bytes = model}), step_events({.unit_bytes = model, .backward = false}),
          step_events({.unit_bytes = model, .gradients = false}),
          step_events({.unit_bytes = shorter}), step_events({.unit_bytes = wider})};
}

void check_known_steps(Driver& driver, const std::vector<std::vector<StepEvent>>& kinds) {
  const uint64_t misses = driver.region.misses(), extent = driver.region.extent(),
                 moves = driver.moves;
  driver.offsets_of_key.clear();
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    driver.step(kinds[random() % kinds.size()]);
    EXPECT_TRUE(driver.region.by_table()) << i;
  }
  EXPECT_EQ(driver.region.misses(), misses);
  EXPECT_EQ(driver.region.extent(), extent);
  EXPECT_EQ(driver.moves, moves);
  for (const auto& [key, offsets] : driver.offsets_of_key) EXPECT_EQ(offsets.size(), 1U) << key;
}

TEST(KnownSteps, SeveralDeclaredStepsAreKnownAtOnce) {
  const auto kinds = kinds_of_step();
  Driver driver(false);
  for (const auto& step : kinds) ASSERT_TRUE(driver.region.declare(step).ok());
  EXPECT_EQ(driver.region.known_steps(), kinds.size());
  for (const auto& step : kinds) driver.step(step);
  for (const auto& step : kinds) driver.step(step);
  driver.moves = 0;
  check_known_steps(driver, kinds);
  EXPECT_EQ(driver.region.misses(), 0U);
  EXPECT_EQ(driver.region.extent(), driver.region.plan_bytes());
}

TEST(KnownSteps, SeveralRecordedStepsAreKnownAtOnce) {
  const auto kinds = kinds_of_step();
  Driver driver(true);
  for (int round = 0; round < 2; ++round)
    for (const auto& step : kinds) driver.step(step);
  EXPECT_EQ(driver.region.known_steps(), kinds.size());
  check_known_steps(driver, kinds);
  EXPECT_EQ(driver.region.extent(), driver.region.plan_bytes());
}

TEST(KnownSteps, TheStepThatDidNotComeForLongestIsForgotten) {
  const auto step_of = [](uint64_t units) {
    return step_events({.unit_bytes = std::vector<uint64_t>(units, 2 * kPage), .gradients = false});
  };
  Driver driver(true);
  for (uint64_t units = 1; units <= KnownSteps::kMost; ++units) driver.step(step_of(units));
  EXPECT_EQ(driver.region.known_steps(), KnownSteps::kMost);
  driver.step(step_of(1));
  const auto misses_of = [&](uint64_t units) {
    const uint64_t before = driver.region.misses();
    driver.step(step_of(units));
    return driver.region.misses() - before;
  };
  EXPECT_GT(misses_of(20), 0U);
  EXPECT_GT(misses_of(20), 0U);  // that the step came once was no reason to forget another one
  for (uint64_t units : {20, 1, 3, 4, 5, 6, 7, 8}) EXPECT_EQ(misses_of(units), 0U) << units;
  EXPECT_EQ(driver.region.known_steps(), KnownSteps::kMost);
}

// Two ranks may leave their tables at different places: a refused call makes one of them leave it
// early. The hash covers the history of slots alone, so it stays the same on both.
TEST(KnownSteps, TheHashIsOfTheHistoryNotOfTheTables) {
  const auto kinds = kinds_of_step();
  Driver one(false), two(false);
  for (const auto& step : kinds) {
    ASSERT_TRUE(one.region.declare(step).ok());
    ASSERT_TRUE(two.region.declare(step).ok());
  }
  std::mt19937_64 random(9);
  for (int i = 0; i < 30; ++i) {
    const std::vector<StepEvent>& step = kinds[random() % kinds.size()];
    const size_t mistake = random() % step.size();
    for (size_t at = 0; at < step.size(); ++at) {
      if (at == mistake) {  // leaves the table, and changes nothing
        EXPECT_FALSE(two.region.give_back(999, 1).ok());
      }
      one.apply(step[at]);
      two.apply(step[at]);
      ASSERT_EQ(one.region.hash(), two.region.hash()) << "step " << i << ", event " << at;
    }
    one.region.end_step();
    two.region.end_step();
    ASSERT_EQ(one.region.hash(), two.region.hash()) << "step " << i;
  }
  EXPECT_EQ(one.offsets, two.offsets);
}

// A first step, without a plan, needs more memory than a plan does. When it ends, the extent falls
// to that of the plan.
TEST(KnownSteps, TheExtentFallsToThePlans) {
  const std::vector<StepEvent> events = {take_event(1, 3, false), take_event(2, 4, false),
                                         give_event(1),           take_event(3, 5, false),
                                         give_event(2),           give_event(3)};
  Driver driver(true);
  driver.run(events);
  EXPECT_EQ(driver.region.extent(), 12 * kPage);
  driver.region.end_step();
  EXPECT_EQ(driver.region.extent(), 9 * kPage);
  for (int i = 0; i < 3; ++i) driver.step(events);
  EXPECT_EQ(driver.region.extent(), 9 * kPage);
}

}  // namespace
}  // namespace fsccl
