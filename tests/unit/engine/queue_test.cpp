// Tests the queue of operations. The tests break its rules on purpose.
#include "engine/queue.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "plan/collectives.h"
#include "tests/unit/engine/broken_rules.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

class Queues : public ::testing::Test {
 protected:
  void TearDown() override { EXPECT_EQ(broken_.rules, expected_); }
  void expect_broken(const std::string& rule) { expected_.push_back(rule); }
  void submit(uint64_t sequence) {
    queue_->place(sequence, {}, {.op = OpCode::barrier});
    queue_->submit(sequence, Queue::Order::release);
  }

  BrokenRules broken_;
  std::vector<std::string> expected_;
  std::unique_ptr<Queue> queue_ = std::make_unique<Queue>(broken_);
};

TEST_F(Queues, OperationsCompleteInOrder) {
  EXPECT_TRUE(queue_->idle());
  for (uint64_t i = 1; i <= 3 * Queue::kRing; i++) {
    submit(i);
    EXPECT_EQ(queue_->under_way(), 1u);
    EXPECT_FALSE(queue_->idle());
    EXPECT_EQ(queue_->head().fingerprint.sequence, i);
    EXPECT_EQ(queue_->complete(), i);
  }
  EXPECT_TRUE(queue_->idle());
}

TEST_F(Queues, OneThreadDrives) {
  EXPECT_TRUE(queue_->try_drive());
  EXPECT_FALSE(queue_->try_drive());
  EXPECT_FALSE(queue_->idle());
  EXPECT_FALSE(queue_->take_missed());
  queue_->note_missed();
  EXPECT_TRUE(queue_->take_missed());
  EXPECT_FALSE(queue_->take_missed());
  queue_->leave();
  EXPECT_TRUE(queue_->try_drive());
}

TEST_F(Queues, AnOperationStartsAnew) {
  Operation& first = queue_->place(1, {.publishes = 1}, {.op = OpCode::all_gather});
  first.step = 7;
  first.begun = first.unreachable = true;
  first.deadline_ns = 5;
  queue_->submit(1, Queue::Order::release);
  queue_->complete();
  for (uint64_t i = 2; i <= Queue::kRing; i++) {
    submit(i);
    queue_->complete();
  }
  const Operation& again = queue_->place(Queue::kRing + 1, {}, {.op = OpCode::barrier});
  ASSERT_EQ(&again, &first);
  EXPECT_EQ(again.step, 0u);
  EXPECT_EQ(again.publishes, 0u);
  EXPECT_FALSE(again.begun || again.unreachable || again.deadline_ns);
}

TEST_F(Queues, TheRingHoldsNoMoreThanItsLength) {
  for (uint64_t i = 1; i <= Queue::kRing; i++) submit(i);
  queue_->place(Queue::kRing + 1, {}, {});
  expect_broken("sequence - completed() <= kRing");
}

TEST_F(Queues, SequenceNumbersFollowEachOther) {
  queue_->submit(2, Queue::Order::release);
  expect_broken("sequence == submitted() + 1");
}

// If the library itself breaks a rule, the communicator ends with an error that names the rule, and
// the case is counted.
TEST(Invariants, ABrokenRuleFailsTheCommunicator) {
  testing::over_channel(1, [](int, testing::Wrapped& channel, uint32_t tick) {
    Engine engine(testing::options_over(channel, 0, 1, tick));
    const Plan plan = barrier(0, 1);
    Operation* operation = nullptr;
    ASSERT_TRUE(engine.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
    operation->plan = &plan;
    operation->fingerprint.sequence = 2;  // stands for a defect in the code that fills operations
    fsccl_status_t state;
    const Status status = engine.submit(*operation, true, &state);
    EXPECT_EQ(status.code(), FSCCL_ERR_INTERNAL);
    EXPECT_NE(status.text().find("does not hold"), std::string::npos) << status.text();
    EXPECT_TRUE(engine.failed());
  });
}

// Plans for GPUs are carried out elsewhere, so the engine of the host refuses their steps.
TEST(Invariants, AnEngineOfTheHostHasNoStepsOfGpus) {
  for (const StepKind kind : {StepKind::native, StepKind::divide})
    testing::over_channel(1, [&](int, testing::Wrapped& channel, uint32_t tick) {
      Engine engine(testing::options_over(channel, 0, 1, tick));
      Plan plan = barrier(0, 1);
      Step step{};
      step.kind = kind;
      plan.steps.insert(plan.steps.begin(), step);
      Operation* operation = nullptr;
      ASSERT_TRUE(engine.acquire(&operation, {}, {.op = OpCode::barrier}).ok());
      operation->plan = &plan;
      fsccl_status_t state;
      const Status status = engine.submit(*operation, true, &state);
      EXPECT_EQ(status.code(), FSCCL_ERR_INTERNAL);
      EXPECT_NE(status.text().find("StepKind::native"), std::string::npos) << status.text();
    });
}

}  // namespace
}  // namespace fsccl
