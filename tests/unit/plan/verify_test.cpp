// Tests that the verifier rejects wrong plans. Right plans are damaged, one step at a time and in
// every place where the damage is a defect, and each damaged set of plans must be rejected.
#include "plan/verify.h"

#include <gtest/gtest.h>

#include <functional>

#include "expected.h"
#include "hand_made.h"
#include "layout/layout.h"
#include "plan/describe.h"
#include "plan/unit_plans.h"

namespace fsccl::testing {
namespace {

struct Case {
  std::string name;
  std::vector<Plan> plans;
  std::vector<Expected> expected;
};

Shape shape_of(int rank, int ranks, uint64_t count, fsccl_dtype_t dtype, int root = 0) {
  Shape shape;
  shape.rank = rank;
  shape.ranks = ranks;
  shape.count = count;
  shape.dtype = dtype;
  shape.root = root;
  return shape;
}

Plan pulled_all_gather(const Shape& shape) { return move_direct(all_gather_movement(shape)); }

std::vector<Case> right_cases() {
  std::vector<Case> cases;
  for (const Collective& collective : collectives())
    for (const int ranks : {3, 5}) {
      // The count is large enough that every rank has a part, or small enough for a signal.
      const bool tiny = collective.fits != Fits::any;
      const Shape shape =
          shape_of(0, ranks, tiny ? 1 : 100, tiny ? FSCCL_FLOAT16 : FSCCL_FLOAT32, 1);
      cases.push_back(
          {collective.name, for_all_ranks(collective.build, shape), collective.expect(shape)});
    }
  return cases;
}

Case unshard_case(bool shared, int ranks) {
  const Layout layout = Layout::make(FSCCL_LAYOUT_PER_PARAM, {{{10, 3}}, {{7}}}, ranks).take();
  UnitShape shape;
  shape.layout = &layout;
  shape.shard_dtype.assign(2, FSCCL_FLOAT32);
  shape.slot_dtype.assign(2, FSCCL_BFLOAT16);
  shape.slot = make_slot_map(layout, {2, 2});
  Case made{shared ? "unshard_shared" : "unshard_private", {}, {}};
  for (shape.rank = 0; shape.rank < ranks; ++shape.rank) {
    made.plans.push_back(shared ? unshard_shared(shape) : unshard_private(shape, true));
    for (int q = 0; q < ranks; ++q) {
      for (uint32_t i = 0; i < 2; ++i) {
        const Piece piece = layout.piece(q, i);
        if (piece.count == 0 || (shared && shape.rank > 0)) continue;
        made.expected.push_back({{0, shape.rank, shape.slot.offset[i] + piece.begin * 2},
                                 {1 + i, q, 0},
                                 piece.count,
                                 FSCCL_FLOAT32,
                                 FSCCL_BFLOAT16,
                                 false});
      }
    }
  }
  return made;
}

std::vector<Case> all_cases() {
  std::vector<Case> cases = right_cases();
  cases.push_back(unshard_case(true, 4));
  cases.push_back(unshard_case(false, 4));
  return cases;
}

bool moves(const Step& step) { return step.kind <= StepKind::put; }

// Returns whether any rank waits for this signal. A signal for which no rank waits may come at any
// time.
bool awaited(const std::vector<Plan>& plans, const Plan& plan, const Step& signal) {
  for (const Plan& peer : plans)
    for (const Step& step : peer.steps)
      if (peer.rank != plan.rank && step.kind == StepKind::wait && step.tick == signal.tick &&
          (step.peer == kAllPeers || step.peer == plan.rank))
        return true;
  return false;
}

// Applies `damage` to one step of one rank after the other. If it returns true, it has changed the
// plan, and the verifier must reject the plans.
void expect_all_caught(const char* what,
                       const std::function<bool(Plan& plan, size_t step)>& damage) {
  size_t tried = 0;
  for (const Case& right : all_cases()) {
    const Status status = verify(right.plans, right.expected);
    ASSERT_TRUE(status.ok()) << right.name << ": " << status.text();
    for (size_t rank = 0; rank < right.plans.size(); ++rank) {
      for (size_t step = 0; step < right.plans[rank].steps.size(); ++step) {
        std::vector<Plan> wrong = right.plans;
        const Step there = wrong[rank].steps[step];
        if (there.kind == StepKind::choose ||
            (there.kind == StepKind::signal && !awaited(wrong, wrong[rank], there)))
          continue;
        if (!damage(wrong[rank], step)) continue;
        ++tried;
        const Status found = verify(wrong, right.expected);
        EXPECT_FALSE(found.ok()) << what << " is not noticed in " << right.name << ", step " << step
                                 << "\n"
                                 << describe(right.plans[rank]);
        if (!found.ok()) {
          EXPECT_NE(found.text().find("plan "), std::string::npos) << found.text();
        }
      }
    }
  }
  EXPECT_GT(tried, 0u) << what;
}

TEST(Verify, WhatIsOptionalIsNotCountedOn) {
  const auto plans_of = [](const std::function<void(Plan&)>& change) {
    std::vector<Plan> plans;
    for (int rank = 0; rank < 3; rank++) {
      const Shape shape{.rank = rank, .ranks = 3, .count = 1, .dtype = FSCCL_INT32, .root = 0};
      plans.push_back(broadcast_inline(shape));
    }
    change(plans[1]);
    std::vector<Expected> expected;
    for (int rank = 0; rank < 3; rank++)
      expected.push_back({{0, rank, 0}, {0, 0, 0}, 1, FSCCL_INT32, FSCCL_INT32, false});
    return verify(plans, expected);
  };
  EXPECT_TRUE(plans_of([](Plan&) {}).ok());
  const auto refused = [&](const char* why, const std::function<void(Plan&)>& change) {
    const Status status = plans_of(change);
    ASSERT_FALSE(status.ok()) << why;
    EXPECT_NE(status.text().find(why), std::string::npos) << status.text();
  };
  refused("is optional", [](Plan& plan) { plan.steps[0].count = 4; });
  refused("is optional", [](Plan& plan) { std::swap(plan.steps[0], plan.steps[1]); });
  refused("whether it is quiet", [](Plan& plan) { plan.quiet = false; });
  refused("whether it is two-way", [](Plan& plan) { plan.two_way = true; });
  refused("wait", [](Plan& plan) {  // waits for the other receiver, which may not signal
    Step wait = plan.steps[1];
    wait.peer = 2;
    wait.count = 0;
    plan.steps.push_back(wait);
  });
}

TEST(Verify, DroppedStep) {
  expect_all_caught("a dropped step", [](Plan& plan, size_t step) {
    plan.steps.erase(plan.steps.begin() + static_cast<std::ptrdiff_t>(step));
    return true;
  });
}

TEST(Verify, SignalBeforeWhatItAnnounces) {
  expect_all_caught("an early signal", [](Plan& plan, size_t step) {
    if (plan.steps[step].kind != StepKind::signal || step == 0 || !moves(plan.steps[step - 1]))
      return false;
    // The signal announces something else than the step before it.
    if (plan.relayed && plan.steps[step].peer != plan.steps[step - 1].peer) return false;
    std::swap(plan.steps[step], plan.steps[step - 1]);
    return true;
  });
}

TEST(Verify, AccessBeforeItsWait) {
  expect_all_caught("an early access", [](Plan& plan, size_t step) {
    if (step == 0 || !moves(plan.steps[step]) || plan.steps[step - 1].kind != StepKind::wait)
      return false;
    // The bytes came before the signal that this wait is for.
    if (plan.relayed && plan.steps[step].src.rank != plan.steps[step - 1].peer) return false;
    std::swap(plan.steps[step], plan.steps[step - 1]);
    return true;
  });
}

TEST(Verify, WrongSourceOffset) {
  for (const int direction : {1, -1}) {
    expect_all_caught("a wrong source offset", [&](Plan& plan, size_t index) {
      Step& step = plan.steps[index];
      if (!moves(step) && (step.kind != StepKind::signal || step.count == 0)) return false;
      step.src.offset += static_cast<uint64_t>(direction) * dtype_size(step.from);
      return true;
    });
  }
}

TEST(Verify, WrongDestinationOffset) {
  for (const int direction : {1, -1}) {
    expect_all_caught("a wrong destination offset", [&](Plan& plan, size_t index) {
      Step& step = plan.steps[index];
      if (!moves(step) && (step.kind != StepKind::wait || step.count == 0)) return false;
      step.dst.offset += static_cast<uint64_t>(direction) * dtype_size(step.to);
      return true;
    });
  }
}

TEST(Verify, WrongCount) {
  for (const int direction : {1, -1}) {
    expect_all_caught("a wrong count", [&](Plan& plan, size_t index) {
      Step& step = plan.steps[index];
      if (step.count == 0) return false;
      // A copy to scratch of more than is reduced is no defect.
      const bool scratch =
          moves(step) && plan.buffers[step.dst.buffer].role == Role::scratch && direction > 0;
      // A step of a relayed reduce-scatter may move an element less without a defect, because ranks
      // pass on elements that no receiver reduces.
      const bool unused = plan.relayed && plan.name.starts_with("reduce_scatter") && direction < 0;
      if (scratch || unused) return false;
      step.count += static_cast<uint64_t>(direction);
      return true;
    });
  }
}

TEST(Verify, DuplicatedWrite) {
  expect_all_caught("a duplicated write", [](Plan& plan, size_t index) {
    const Step step = plan.steps[index];
    if (!moves(step) || plan.buffers[step.dst.buffer].role == Role::scratch) return false;
    plan.steps.insert(plan.steps.begin() + static_cast<std::ptrdiff_t>(index), step);
    return true;
  });
}

TEST(Verify, DuplicatedSignal) {
  expect_all_caught("a duplicated signal", [](Plan& plan, size_t index) {
    const Step step = plan.steps[index];
    if (step.kind != StepKind::signal) return false;
    plan.steps.insert(plan.steps.begin() + static_cast<std::ptrdiff_t>(index), step);
    return true;
  });
}

TEST(Verify, WaitForTheWrongPeer) {
  expect_all_caught("a wait for the wrong peer", [](Plan& plan, size_t index) {
    Step& step = plan.steps[index];
    if (step.kind != StepKind::wait || step.peer == kAllPeers) return false;
    do step.peer = (step.peer + 1) % plan.ranks;
    while (step.peer == plan.rank);
    return true;
  });
}

TEST(Verify, WaitForOneInsteadOfAll) {
  expect_all_caught("a wait for one peer instead of all", [](Plan& plan, size_t index) {
    Step& step = plan.steps[index];
    if (step.kind != StepKind::wait || step.peer != kAllPeers) return false;
    // The wait is for a rank that has been waited for already, so that one wait is missing.
    step.peer = (plan.rank + 1) % plan.ranks;
    for (size_t i = 0; i < index; ++i)
      if (plan.steps[i].kind == StepKind::wait && plan.steps[i].peer != kAllPeers &&
          plan.steps[i].tick == step.tick)
        step.peer = plan.steps[i].peer;
    return true;
  });
}

TEST(Verify, SourceOfTheWrongPeer) {
  expect_all_caught("a copy from the wrong peer", [](Plan& plan, size_t index) {
    Step& step = plan.steps[index];
    if (step.kind != StepKind::copy || step.src.rank == plan.rank) return false;
    do step.src.rank = (step.src.rank + 1) % plan.ranks;
    while (step.src.rank == plan.rank);
    return true;
  });
}

TEST(Verify, PutForTheWrongPeer) {
  expect_all_caught("a put for the wrong peer", [](Plan& plan, size_t index) {
    Step& step = plan.steps[index];
    if (step.kind != StepKind::put) return false;
    do step.peer = (step.peer + 1) % plan.ranks;
    while (step.peer == plan.rank);
    return true;
  });
}

// Nothing orders two puts to the same bytes, though their values are the same.
TEST(Verify, PutTwice) {
  expect_all_caught("a put made twice", [](Plan& plan, size_t index) {
    const Step step = plan.steps[index];
    if (step.kind != StepKind::put) return false;
    plan.steps.insert(plan.steps.begin() + static_cast<std::ptrdiff_t>(index), step);
    return true;
  });
}

TEST(Verify, WrongTickOfSignal) {
  expect_all_caught("a skipped tick", [](Plan& plan, size_t index) {
    if (plan.steps[index].kind != StepKind::signal) return false;
    ++plan.steps[index].tick;
    return true;
  });
}

TEST(Verify, WaitForAnEarlierOrLaterTick) {
  for (const int direction : {1, -1}) {
    expect_all_caught("a wait for the wrong tick", [&](Plan& plan, size_t index) {
      Step& step = plan.steps[index];
      // A wait for a later tick that exists is only slower, which is no defect.
      if (step.kind != StepKind::wait ||
          (direction < 0 ? step.tick == 0 : step.tick + 1 < plan.ticks))
        return false;
      step.tick = static_cast<uint16_t>(step.tick + direction);
      return true;
    });
  }
}

TEST(Verify, WrongDtype) {
  expect_all_caught("a wrong dtype", [](Plan& plan, size_t index) {
    Step& step = plan.steps[index];
    if (step.kind != StepKind::cast && step.kind != StepKind::reduce) return false;
    step.to = step.to == FSCCL_FLOAT16 ? FSCCL_BFLOAT16 : FSCCL_FLOAT16;
    return true;
  });
}

TEST(Verify, WrongStride) {
  expect_all_caught("a wrong stride", [](Plan& plan, size_t index) {
    if (plan.steps[index].kind != StepKind::reduce_local) return false;
    plan.steps[index].stride -= 2;
    return true;
  });
}

TEST(Verify, BufferThatPeersDoNotKnow) {
  expect_all_caught("an unpublished buffer", [](Plan& plan, size_t index) {
    if (index > 0) return false;
    if (plan.name == "gather_direct" && plan.rank == 1) return false;  // nobody reads from the root
    if (plan.name == "broadcast_read" && plan.rank != 1) return false;  // all read from the root
    bool changed = false;
    for (Buffer& buffer : plan.buffers) {
      // Peers touch the inputs and outputs that hold something; of a scatter's inputs only the
      // root's does.
      changed |= (buffer.address_in_signal && buffer.bytes > 0) || buffer.symmetric;
      buffer.address_in_signal = buffer.symmetric = false;
    }
    return changed;
  });
}

// --- Hand-made plans have the defects that no damage above produces. The text is checked so that
// each fails for its own reason. ---------------------

std::vector<Plan> two_ranks() {
  std::vector<Plan> plans(2);
  for (int rank = 0; rank < 2; ++rank) {
    Plan& plan = plans[static_cast<size_t>(rank)];
    plan = barrier(rank, 2);
    plan.buffers.resize(2);
    plan.buffers[0] = {"input", Role::input, 64};
    plan.buffers[0].address_in_signal = true;
    plan.buffers[1] = {"output", Role::output, 64};
  }
  return plans;
}

void insert_first(Plan& plan, const Step& step) { plan.steps.insert(plan.steps.begin(), step); }

TEST(Verify, Deadlock) {
  auto plans = two_ranks();
  for (Plan& plan : plans) std::swap(plan.steps[0], plan.steps[1]);
  expect_error(plans, "deadlock");
}

TEST(Verify, WritesAnInput) {
  auto plans = two_ranks();
  insert_first(plans[1], copy_bytes_step({0, 1, 0}, {0, 1, 8}, 8));
  expect_error(plans, "is an input and must not be written");
}

TEST(Verify, LeavesTheBuffer) {
  auto plans = two_ranks();
  insert_first(plans[0], copy_bytes_step({1, 0, 8}, {0, 0, 0}, 60));
  expect_error(plans, "exceed the 64 bytes of output");
  plans = two_ranks();
  insert_first(plans[0], copy_bytes_step({1, 0, ~uint64_t{0} - 3}, {0, 0, 0}, 8));
  expect_error(plans, "exceed the 64 bytes of output");
}

TEST(Verify, UnknownPlaces) {
  auto plans = two_ranks();
  insert_first(plans[0], copy_bytes_step({2, 0, 0}, {0, 0, 0}, 8));
  expect_error(plans, "buffer 2 does not exist");
  plans = two_ranks();
  plans[0].steps.push_back(copy_bytes_step({1, 0, 0}, {0, 2, 0}, 8));
  expect_error(plans, "rank 2 does not exist");
}

TEST(Verify, ReadsWhatNobodyWrote) {
  auto plans = two_ranks();
  plans[0].buffers[1].role = plans[1].buffers[1].role = Role::scratch;
  insert_first(plans[0], copy_bytes_step({1, 0, 0}, {1, 0, 32}, 8));
  expect_error(plans, "holds nothing yet");
}

TEST(Verify, SourceOverlapsDestination) {
  auto plans = two_ranks();
  plans[0].buffers[0].role = plans[1].buffers[0].role = Role::inout;
  insert_first(plans[0], copy_bytes_step({0, 0, 4}, {0, 0, 0}, 8));
  expect_error(plans, "overlap");
}

TEST(Verify, TouchesAPeerBeforeItsWait) {
  auto plans = two_ranks();
  insert_first(plans[0], copy_bytes_step({1, 0, 0}, {0, 1, 0}, 8));
  expect_error(plans, "before any wait for that rank");
}

TEST(Verify, WritesWhatIsNoResult) {
  auto plans = two_ranks();
  insert_first(plans[0], copy_bytes_step({1, 0, 0}, {0, 0, 0}, 8));
  expect_error(plans, "is no part of the result");
}

TEST(Verify, MemoryUsedAfterTheEnd) {
  auto plans = two_ranks();
  plans[0].steps.push_back(copy_bytes_step({1, 0, 0}, {0, 1, 0}, 8));
  expect_error(plans, "may still be in use by");
}

TEST(Verify, UnorderedWrites) {
  auto plans = two_ranks();
  for (Plan& plan : plans) plan.buffers[1].shared = true;
  insert_first(plans[0], copy_bytes_step({1, 0, 0}, {0, 0, 0}, 8));
  insert_first(plans[1], copy_bytes_step({1, 1, 8}, {0, 1, 0}, 8));
  EXPECT_TRUE(verify(plans, {{{1, 0, 0}, {0, 0, 0}, 8, FSCCL_UINT8, FSCCL_UINT8, false},
                             {{1, 0, 8}, {0, 1, 0}, 8, FSCCL_UINT8, FSCCL_UINT8, false}})
                  .ok());
  // Scratch may be written twice, but only in order.
  for (Plan& plan : plans) plan.buffers[1].role = Role::scratch;
  plans[1].steps[0].dst.offset = 4;
  expect_error(plans, "are not ordered");
}

TEST(Verify, WritesTheSlotOfAPeer) {
  auto plans = two_ranks();
  for (Plan& plan : plans) plan.buffers[1].slot = true;
  plans[0].steps.push_back(copy_bytes_step({1, 1, 0}, {0, 0, 0}, 8));
  expect_error(plans, "slot of tick 0 mod 8 of rank 1 is written by another");
}

TEST(Verify, GuardedBufferNeedsItsRelease) {
  Case made = unshard_case(true, 3);
  made.plans[1].steps.erase(made.plans[1].steps.begin());
  const Status status = verify(made.plans, made.expected);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.text().find("written before a wait for its release"), std::string::npos)
      << status.text();
}

TEST(Verify, FormOfThePlans) {
  expect_error({}, "no plans");
  auto plans = two_ranks();
  plans[0].ticks = plans[1].ticks = kMaxTicks + 1;
  expect_error(plans, "ticks");
  plans = two_ranks();
  plans[1].rank = 0;
  expect_error(plans, "its rank is not its index");
  plans = two_ranks();
  plans[1].buffers.pop_back();
  expect_error(plans, "number of buffers");
  plans = two_ranks();
  for (Plan& plan : plans) {
    plan.buffers.resize(3, plan.buffers[0]);
    plan.buffers[1].address_in_signal = true;
  }
  expect_error(plans, "more than 2 buffers have their addresses in the signal");
}

TEST(Verify, WrongExpectationIsReported) {
  const Shape shape = shape_of(0, 3, 10, FSCCL_FLOAT32);
  auto expected = expect_all_gather(shape);
  expected[4].source.rank = 2;
  const Status status = verify(for_all_ranks(pulled_all_gather, shape), expected);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.text().find("but should hold"), std::string::npos) << status.text();
}

TEST(Verify, AliasedBuffersAreOneMemory) {
  const Shape shape = shape_of(0, 3, 100, FSCCL_FLOAT32);
  const auto plans = for_all_ranks(pulled_all_gather, shape);
  EXPECT_TRUE(verify(plans, expect_all_gather(shape), {{0, 0, 1, 0}}).ok());
  // Rank 0's input lies where part 1 of its output goes, so it is overwritten while peers read it.
  const Status status = verify(plans, expect_all_gather(shape), {{0, 0, 1, 400}});
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.text().find("are not ordered"), std::string::npos) << status.text();
  EXPECT_FALSE(verify(plans, expect_all_gather(shape), {{0, 0, 9, 0}}).ok());
}

TEST(Describe, OneLineAStep) {
  const Plan plan = pulled_all_gather(shape_of(1, 2, 12, FSCCL_FLOAT32));
  EXPECT_EQ(describe(plan, plan.steps[1]), "copy 12 x float32: output[48] <- input[0]");
  EXPECT_EQ(describe(plan, plan.steps[2]), "wait for tick 0 of all");
  EXPECT_EQ(describe(plan, plan.steps[4]), "copy 12 x float32: output[0] <- input[0] of rank 0");
  EXPECT_EQ(describe(plan, plan.steps[6]), "wait for tick 1 of rank 0");
}

}  // namespace
}  // namespace fsccl::testing
