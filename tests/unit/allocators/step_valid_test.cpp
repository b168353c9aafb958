#include "allocators/placement/step_valid.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "step_events.h"
#include "stream_step.h"

namespace fsccl {
namespace {

constexpr uint64_t kStepPage = 4096;

StepEvent take(uint64_t key, uint64_t pages, uint32_t stream, bool stable = false) {
  return {.stable = stable, .stream = stream, .key = key, .bytes = pages * kStepPage};
}
StepEvent on(StepOp op, uint64_t key, uint32_t stream = 0) {
  return {.op = op, .stream = stream, .key = key};
}

StepSchedule schedule_of(std::vector<StepEvent> events, std::vector<uint64_t> pages,
                         uint64_t extent) {
  StepSchedule schedule;
  schedule.events = std::move(events);
  for (const uint64_t page : pages) schedule.offset.push_back(page * kStepPage);
  schedule.bytes = extent * kStepPage;
  return schedule;
}

TEST(StepValid, SlotsThatAreThereTogetherMayNotOverlap) {
  const std::vector<StepEvent> events = {take(1, 2, 0), take(2, 2, 0), on(StepOp::kGiveBack, 1),
                                         on(StepOp::kGiveBack, 2)};
  EXPECT_EQ(step_problem(schedule_of(events, {0, 2, 0, 0}, 4), {}, kStepPage), "");
  EXPECT_NE(step_problem(schedule_of(events, {0, 1, 0, 0}, 4), {}, kStepPage), "");
  EXPECT_NE(step_problem(schedule_of(events, {0, 3, 0, 0}, 4), {}, kStepPage), "")
      << "beyond the extent";
}

TEST(StepValid, AnotherStreamMayHaveBytesOnlyBehindAnEdge) {
  const std::vector<StepEvent> unordered = {take(1, 1, 0), on(StepOp::kUse, 1, 1),
                                            on(StepOp::kGiveBack, 1), take(2, 1, 0),
                                            on(StepOp::kGiveBack, 2)};
  EXPECT_NE(step_problem(schedule_of(unordered, {0, 0, 0, 0, 0}, 2), {}, kStepPage), "");
  EXPECT_EQ(step_problem(schedule_of(unordered, {0, 0, 0, 1, 0}, 2), {}, kStepPage), "");
  const std::vector<StepEvent> ordered = {
      take(1, 1, 0),           on(StepOp::kUse, 1, 1),   on(StepOp::kRecord, 5, 1),
      on(StepOp::kWait, 5, 0), on(StepOp::kGiveBack, 1), take(2, 1, 0),
      on(StepOp::kGiveBack, 2)};
  std::vector<StepEvent> edge_back = ordered;
  edge_back.push_back(on(StepOp::kRecord, 6, 0));
  edge_back.push_back(on(StepOp::kWait, 6, 1));
  EXPECT_EQ(step_problem(schedule_of(edge_back, std::vector<uint64_t>(9, 0), 1), {}, kStepPage),
            "");
  std::vector<StepEvent> late = edge_back;
  std::swap(late[1], late[2]);  // recorded before the use
  EXPECT_NE(step_problem(schedule_of(late, std::vector<uint64_t>(9, 0), 1), {}, kStepPage), "");
}

TEST(StepValid, TheStepBoundaryIsNoEdge) {
  // The events are those of the last slot of a step and of the first slot of the next one, on two
  // streams.
  const std::vector<StepEvent> events = {
      take(1, 1, 0), on(StepOp::kGiveBack, 1), on(StepOp::kRecord, 1, 0), on(StepOp::kWait, 1, 1),
      take(2, 1, 1), on(StepOp::kGiveBack, 2)};
  EXPECT_NE(step_problem(schedule_of(events, std::vector<uint64_t>(6, 0), 1), {}, kStepPage), "");
  EXPECT_EQ(step_problem(schedule_of(events, {0, 0, 0, 0, 1, 0}, 2), {}, kStepPage), "");
}

TEST(StepValid, StableKeysHaveOneOffset) {
  const std::vector<StepEvent> events = {take(1, 1, 0, true), on(StepOp::kGiveBack, 1),
                                         take(1, 1, 0, true), on(StepOp::kGiveBack, 1)};
  EXPECT_EQ(step_problem(schedule_of(events, {1, 0, 1, 0}, 2), {}, kStepPage), "");
  EXPECT_NE(step_problem(schedule_of(events, {1, 0, 0, 0}, 2), {}, kStepPage), "");
}

TEST(StepValid, WhatIsHeldFromBeforeCounts) {
  const std::vector<StepEvent> events = {take(2, 1, 0), on(StepOp::kGiveBack, 2)};
  const HeldSlots held = {{1, {.offset = 0, .bytes = kStepPage}}};
  EXPECT_NE(step_problem(schedule_of(events, {0, 0}, 2), held, kStepPage), "");
  EXPECT_EQ(step_problem(schedule_of(events, {1, 0}, 2), held, kStepPage), "");
}

// The checker must accept the plan of each random step. Then one slot of the plan is moved to a
// random offset, which the checker must refuse in many steps.
TEST(StepValid, PlansOfRandomStepsAreProved) {
  std::mt19937_64 random(3);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    StepSchedule schedule =
        plan_step(random_stream_step(random, 20 + random() % 80, kStepPage), {}, kStepPage);
    ASSERT_EQ(step_problem(schedule, {}, kStepPage), "") << "step " << i;
    std::vector<size_t> takes;
    for (size_t at = 0; at < schedule.events.size(); ++at)
      if (schedule.events[at].takes() && !schedule.events[at].stable) takes.push_back(at);
    if (takes.empty()) continue;
    const size_t moved = takes[random() % takes.size()];
    schedule.offset[moved] = random() % (schedule.bytes / kStepPage) * kStepPage;
    refused += !step_problem(schedule, {}, kStepPage).empty();
  }
  EXPECT_GT(refused, 100);
}

// A step with too many slots for a graph of conflicts gets a plan that is made in the order of the
// step.
TEST(StepValid, PlansInTheOrderOfTheStepAreProved) {
  std::mt19937_64 random(4);
  for (int i = 0; i < 300; ++i) {
    const std::vector<StepEvent> events = random_stream_step(random, 20 + random() % 80, kStepPage);
    ASSERT_EQ(step_problem(plan_step(events, {}, kStepPage, 0), {}, kStepPage), "") << "step " << i;
  }
  const HeldSlots held = {{2, {.offset = 3 * kStepPage, .bytes = 2 * kStepPage, .stable = true}}};
  for (int units = 1; units < 12; ++units) {
    std::vector<uint64_t> bytes;
    for (int u = 0; u < units; ++u) bytes.push_back((1 + random() % 9) * kStepPage);
    const std::vector<StepEvent> events = StreamStep(bytes).build();
    ASSERT_EQ(step_problem(plan_step(events, {}, kStepPage, 0), {}, kStepPage), "") << units;
    const StepSchedule kept = plan_step(events, held, kStepPage, 0);
    ASSERT_EQ(step_problem(kept, held, kStepPage), "") << units;
  }
}

TEST(StepValid, PlansOfStepsOverStreamsAreProvedAndSmall) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 60; ++i) {
    std::vector<uint64_t> sizes =
        transformer((1 + random() % 60) * kStepPage, (1 + random() % 40) * kStepPage,
                    1 + static_cast<int>(random() % 40), (1 + random() % 60) * kStepPage);
    if (i % 2 == 1)
      for (uint64_t& size : sizes) size = (1 + random() % 4) * 9 * kStepPage;
    const StepSchedule schedule = plan_step(StreamStep(sizes).build(), {}, kStepPage);
    ASSERT_EQ(step_problem(schedule, {}, kStepPage), "");
    if (i % 2 == 0) {
      EXPECT_LE(static_cast<double>(schedule.bytes),
                1.01 * static_cast<double>(schedule.clique_bound))
          << "step " << i;
    }
  }
}

TEST(StepValid, StepsThatArePlannedTogetherMustAgree) {
  const std::vector<StepEvent> one = {take(1, 1, 0), take(2, 1, 0, true), on(StepOp::kGiveBack, 1),
                                      on(StepOp::kGiveBack, 2)};
  const std::vector<StepEvent> two = {take(1, 1, 0), on(StepOp::kGiveBack, 1), take(2, 1, 0, true),
                                      on(StepOp::kGiveBack, 2)};
  const auto problem = [&](std::vector<uint64_t> first, std::vector<uint64_t> second) {
    JointPlan plan;
    plan.steps = {schedule_of(one, std::move(first), 3), schedule_of(two, std::move(second), 3)};
    return steps_problem(plan, {}, kStepPage);
  };
  EXPECT_EQ(problem({0, 1, 0, 0}, {0, 0, 1, 0}), "");
  EXPECT_NE(problem({0, 1, 0, 0}, {0, 0, 0, 0}).find("stable"), std::string::npos);
  EXPECT_NE(problem({0, 1, 0, 0}, {2, 0, 1, 0}).find("alike up to event 0"), std::string::npos);
}

TEST(StepValid, WorkThatGoesOnMeetsEachStepThatMayFollow) {
  const std::vector<StepEvent> leaves = {take(1, 1, 1), on(StepOp::kGiveBack, 1)},
                               quiet = {take(2, 1, 0), on(StepOp::kGiveBack, 2)};
  JointPlan plan;
  plan.steps = {schedule_of(leaves, {0, 0}, 2), schedule_of(quiet, {0, 0}, 2)};
  EXPECT_NE(steps_problem(plan, {}, kStepPage), "");
  plan.steps[1] = schedule_of(quiet, {1, 0}, 2);
  EXPECT_EQ(steps_problem(plan, {}, kStepPage), "");
}

// The steps begin alike and then differ, and some slots are held from the beginning.
TEST(StepValid, RandomStepsPlannedTogetherAreValid) {
  std::mt19937_64 random(23);
  for (int round = 0; round < 120; ++round) {
    std::vector<std::vector<StepEvent>> steps = {
        random_stream_step(random, 20 + random() % 60, kStepPage)};
    const size_t count = 2 + random() % 3;
    while (steps.size() < count) {
      std::vector<StepEvent> step = steps[random() % steps.size()];
      const std::vector<StepEvent> other =
          random_stream_step(random, 20 + random() % 40, kStepPage);
      if (random() % 3 == 0) {
        step = other;
      } else {
        const size_t at = random() % step.size();
        for (StepEvent& event : step)
          if (event.op == StepOp::kUse && (&event - step.data()) > static_cast<std::ptrdiff_t>(at))
            event.stream = static_cast<uint32_t>(random() % kStreams);
      }
      steps.push_back(step);
    }
    HeldSlots held;
    if (round % 3 == 0)
      held.emplace(1000, HeldSlot{.offset = 3 * kStepPage, .bytes = 5 * kStepPage, .stable = true});
    if (round % 6 == 0) {
      for (std::vector<StepEvent>& step : steps) {
        step.insert(step.begin() + static_cast<std::ptrdiff_t>(step.size() / 2),
                    on(StepOp::kGiveBack, 1000));
        step.push_back({.stable = true, .stream = 1, .key = 1000, .bytes = 5 * kStepPage});
      }
    }
    const JointPlan plan = plan_steps(steps, held, kStepPage);
    ASSERT_EQ(steps_problem(plan, held, kStepPage), "") << "round " << round;
  }
}

}  // namespace
}  // namespace fsccl
