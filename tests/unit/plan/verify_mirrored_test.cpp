// Tests the verifier's rules for mirrored slots, each with a plan that breaks this rule only.
#include <gtest/gtest.h>

#include "hand_made.h"
#include "plan/collectives.h"
#include "plan/describe.h"

namespace fsccl::testing {
namespace {

constexpr uint32_t kInput = 0, kOutput = 1, kSlot = 2;

// Returns the first steps of every rank: all ranks signal tick 0 and wait for it. After that puts
// of tick 1 are allowed.
std::vector<Plan> mirrored_ranks(int ranks) {
  std::vector<Plan> plans;
  for (int rank = 0; rank < ranks; ++rank) {
    Plan plan = barrier(rank, ranks);
    plan.ticks = 2;
    plan.mirrored = true;
    plan.buffers = {
        {"input", Role::inout, 64}, {"output", Role::output, 64}, {"slot", Role::scratch, 64}};
    plan.buffers[kSlot].slot = true;
    plan.buffers[kSlot].slot_tick = 1;
    plans.push_back(std::move(plan));
  }
  return plans;
}
Step signal_step() {
  Step step;
  step.kind = StepKind::signal;
  step.tick = 1;
  return step;
}
Step wait_step(int peer) {
  Step step;
  step.kind = StepKind::wait;
  step.peer = peer;
  step.tick = 1;
  return step;
}
Step put_step(int peer, Operand src = {kInput, 0, 0}) {
  Step step = copy_bytes_step({kSlot, 0, 0}, src, 64);
  step.kind = StepKind::put;
  step.peer = peer;
  return step;
}
Step take_step(int rank) { return copy_bytes_step({kOutput, rank, 0}, {kSlot, 0, 0}, 64); }
Expected taken(int rank) {
  return {{kOutput, rank, 0}, {kInput, 0, 0}, 64, FSCCL_UINT8, FSCCL_UINT8, false};
}

void append(Plan& plan, const std::vector<Step>& steps) {
  plan.steps.insert(plan.steps.end(), steps.begin(), steps.end());
}

// Returns plans in which rank 0 puts its input for rank 1, which copies it to its output.
std::vector<Plan> one_put() {
  auto plans = mirrored_ranks(2);
  append(plans[0], {put_step(1), signal_step()});
  append(plans[1], {signal_step(), wait_step(0), take_step(1)});
  return plans;
}

TEST(VerifyMirrored, WhatIsPutIsThere) {
  const Status status = verify(one_put(), {taken(1)});
  EXPECT_TRUE(status.ok()) << status.text();
}

// Returns plans of four ranks, in which each rank learns from the rank before it that two others
// have entered.
std::vector<Plan> relayed() {
  std::vector<Plan> plans;
  for (int rank = 0; rank < 4; ++rank) plans.push_back(barrier_in_steps(rank, 4, 2));
  return plans;
}

TEST(VerifyMirrored, WhoHasEnteredMayBeHeardFromOthers) {
  EXPECT_TRUE(verify(relayed(), {}).ok());
  auto plans = relayed();
  for (Plan& plan : plans) {  // signals tick 1 before it has waited for tick 0
    ASSERT_EQ(plan.steps[1].kind, StepKind::wait);
    std::swap(plan.steps[1], plan.steps[2]);
  }
  expect_error(plans, "does not know that rank 1 has entered");
  plans = relayed();
  plans[2].steps[0].peer = kAllPeers;
  expect_error(plans, "a relayed signal is for one peer");
  plans = relayed();
  for (Plan& plan : plans) plan.completes_early = true;
  expect_error(plans, "a relayed plan has one round");
  plans = relayed();
  plans[0].steps.insert(plans[0].steps.begin(), plans[0].steps[0]);
  expect_error(plans, "tick 0 is signalled twice");
  plans = mirrored_ranks(2);
  plans[0].steps[0].peer = 1;
  expect_error(plans, "a signal is for all peers");
}

// A rank that puts nothing in a tick may leave its signal out, except in tick 0. The signals that
// it gives come in order.
TEST(VerifyMirrored, TicksMayBeLeftOut) {
  auto plans = one_put();
  plans[1].steps.erase(plans[1].steps.begin() + 2);
  const Status status = verify(plans, {taken(1)});
  EXPECT_TRUE(status.ok()) << status.text();
  plans[0].ticks = plans[1].ticks = 3;
  Step later = signal_step();
  later.tick = 2;
  plans[0].steps.insert(plans[0].steps.begin() + 2, later);
  expect_error(plans, "tick 2 came before");
  plans = one_put();
  plans[1].steps.erase(plans[1].steps.begin());
  plans[0].steps.erase(plans[0].steps.begin() + 1);  // the wait for that signal
  plans[0].completes_early = true;
  expect_error(plans, "tick 0 was never signalled");
}

TEST(VerifyMirrored, PutAfterItsSignal) {
  auto plans = one_put();
  std::swap(plans[0].steps.back(), plans[0].steps[plans[0].steps.size() - 2]);
  // Rank 1 reads much later, so that nothing else is wrong.
  plans[0].ticks = plans[1].ticks = 3;
  Step later = signal_step(), seen = wait_step(0);
  later.tick = seen.tick = 2;
  append(plans[0], {later});
  plans[1].steps.insert(plans[1].steps.end() - 1, {later, seen});
  expect_error(plans, "after its signal");
}

TEST(VerifyMirrored, ReadsWhatWasNotPutForIt) {
  // The reader names bytes of rank 0's own slot, or bytes that were put for another rank.
  auto plans = one_put();
  plans[0].steps[2] = copy_bytes_step({kSlot, 0, 0}, {kInput, 0, 0}, 64);
  expect_error(plans, "holds nothing yet");
  plans = mirrored_ranks(3);
  append(plans[0], {put_step(2), signal_step()});
  append(plans[1], {signal_step(), wait_step(0), take_step(1)});
  append(plans[2], {signal_step(), wait_step(0)});
  expect_error(plans, "holds nothing yet");
}

TEST(VerifyMirrored, HearsOfAPutFromAThirdRank) {
  for (const bool waits_later : {false, true}) {
    auto plans = mirrored_ranks(3);
    append(plans[0], {put_step(2), signal_step()});
    append(plans[1], {wait_step(0), signal_step()});
    append(plans[2], {wait_step(1), take_step(2), signal_step()});
    if (waits_later) append(plans[2], {wait_step(0)});
    expect_error(plans, "slot of tick 1 mod 8 for rank 2 of rank 0 are not ordered");
  }
}

// Rank 1 has waited for tick 0, before which rank 0 put the bytes, but not for the tick of the
// slot.
TEST(VerifyMirrored, ReadsBeforeTheTickOfTheSlot) {
  auto plans = mirrored_ranks(2);
  plans[0].steps.insert(plans[0].steps.begin(), put_step(1));
  append(plans[0], {signal_step()});
  append(plans[1], {take_step(1), signal_step(), wait_step(0)});
  expect_error(plans, "slot of tick 1 mod 8 for rank 1 of rank 0 are not ordered");
}

// Three plans overwrite the bytes that a put reads: before the put is signalled, after a signal
// that the peer gave before it waited for the put, and after one that it gave afterwards. Only the
// last is right.
TEST(VerifyMirrored, WritesWhatAPutReads) {
  const Step write = copy_bytes_step({kInput, 0, 0}, {kOutput, 0, 0}, 64);
  const auto rewritten = [&](const std::vector<Step>& steps) {
    auto plans = mirrored_ranks(2);
    for (Plan& plan : plans)
      plan.buffers[kOutput].role = Role::inout, plan.buffers[kInput].role = Role::scratch;
    plans[0].steps.insert(plans[0].steps.begin(),
                          copy_bytes_step({kInput, 0, 0}, {kOutput, 0, 0}, 64));
    append(plans[0], steps);
    return plans;
  };
  auto plans = rewritten({put_step(1), write, signal_step()});
  append(plans[1], {wait_step(0), signal_step()});
  expect_error(plans, "input of rank 0 are not ordered");
  plans = rewritten({put_step(1), signal_step(), wait_step(1), write});
  append(plans[1], {signal_step(), wait_step(0)});
  expect_error(plans, "input of rank 0 are not ordered");
  plans = rewritten({put_step(1), signal_step(), wait_step(1), write});
  append(plans[1], {wait_step(0), signal_step()});
  const Status status = verify(plans, {});
  EXPECT_TRUE(status.ok()) << status.text();
}

TEST(VerifyMirrored, GapsOfTheOwnSlotArePutButHoldNothing) {
  auto plans = one_put();
  plans[0].steps[2] = put_step(1, {kSlot, 0, 0});
  const Status status = verify(plans, {taken(1)});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.text().find("but should hold"), std::string::npos) << status.text();
}

TEST(VerifyMirrored, FormOfAPut) {
  const auto with = [](const Step& put) {
    auto plans = one_put();
    plans[0].steps[2] = put;
    return plans;
  };
  expect_error(with(put_step(0)), "a rank that is not a peer");
  expect_error(with(put_step(2)), "a rank that is not a peer");
  expect_error(with(put_step(kAllPeers)), "a rank that is not a peer");
  expect_error(with(put_step(1, {kSlot, 1, 0})), "puts what lies on another rank");
  Step put = put_step(1);
  put.dst = {kOutput, 0, 0};
  expect_error(with(put), "puts into what is not a slot");
  put.dst = {9, 0, 0};
  expect_error(with(put), "does not exist");
  put.dst = {kSlot, 1, 0};
  expect_error(with(put), "is written by another");
  auto plans = one_put();
  for (Plan& plan : plans) plan.buffers[kSlot].slot_tick = 2;
  expect_error(plans, "no such tick");
  plans = one_put();
  for (Plan& plan : plans) plan.mirrored = false;
  expect_error(plans, "a slot that is not mirrored");
  plans[0].mirrored = true;
  expect_error(plans, "its kind of slots");
  plans = one_put();
  for (Plan& plan : plans) plan.buffers[kOutput].address_exchanged = true;
  expect_error(plans, "peers touch another buffer");
}

TEST(VerifyMirrored, Described) {
  const Plan plan = one_put()[0];
  EXPECT_EQ(describe(plan, plan.steps[2]), "put 64 x uint8 for rank 1: slot[0] <- input[0]");
  EXPECT_NE(describe(plan).find("slots are mirrored"), std::string::npos);
}

}  // namespace
}  // namespace fsccl::testing
