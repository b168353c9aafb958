// Tests collectives over an engine, without a communicator.
#include "comm/collective.h"

#include <gmock/gmock.h>

#include <array>
#include <memory>

#include "tests/unit/wrapped_channel.h"

namespace fsccl::testing {
namespace {

// A program whose counts vary, and that always has a call in flight, needs a new plan for each
// call. Besides the plans of calls in flight, few are kept.
TEST(Collectives, KeepFewCallsAndThoseThatAreInFlight) {
  over_channel(1, [](int, Wrapped& channel, uint32_t tick) {
    Engine engine(options_over(channel, 0, 1, tick));
    Collectives collectives(engine, {});
    Milestone gate;
    std::weak_ptr<const void> held;
    const auto wait_at_gate = [&](Operation& op) {
      held = op.state;
      op.gate = &gate;
      op.gate_position = 1;
      op.gate_engine = &engine;
    };
    const std::array<int, 3> sent{4, 5, 6};
    std::array<int, 3> received{};
    CollectiveCall call;
    call.op = OpCode::all_gather;
    call.dtype = FSCCL_INT32;
    call.count = sent.size();
    call.input = sent.data();
    call.output = received.data();
    call.prepare = wait_at_gate;
    fsccl_status_t state;
    ASSERT_TRUE(collectives.run(call, false, &state).ok());
    EXPECT_EQ(state, FSCCL_IN_PROGRESS);
    CollectiveCall other = call;
    other.input = other.output = nullptr;
    for (size_t i = 0; i < KeptCalls::kMost + 10; i++) {
      other.count++;
      EXPECT_EQ(collectives.run(other, false, &state).code(), FSCCL_ERR_INVALID_ARGUMENT);
      ASSERT_LE(collectives.kept_calls().size(), KeptCalls::kMost);
    }
    EXPECT_EQ(collectives.kept_calls().size(), 11u) << "the call in flight was dropped as well";
    EXPECT_FALSE(held.expired());
    gate.reach(1);
    EXPECT_TRUE(engine.wait(1, -1, &state).ok());
    EXPECT_EQ(received, sent);
    EXPECT_TRUE(held.expired());
  });
}

// An operation behind a gate gets some time beyond its timeout. The longest timeout leaves no room
// for that in the number that has the deadline.
TEST(Collectives, TheLongestTimeoutNeverPasses) {
  over_channel(1, [](int, Wrapped& channel, uint32_t tick) {
    EngineOptions options = options_over(channel, 0, 1, tick);
    options.timeout_ms = INT64_MAX;
    Engine engine(std::move(options));
    Collectives collectives(engine, {});
    Milestone gate;
    const auto wait_at_gate = [&](Operation& op) {
      op.gate = &gate;
      op.gate_position = 1;
      op.gate_engine = &engine;
    };
    const int sent = 4;
    int received = 0;
    CollectiveCall call;
    call.op = OpCode::all_gather;
    call.dtype = FSCCL_INT32;
    call.count = 1;
    call.input = &sent;
    call.output = &received;
    call.prepare = wait_at_gate;
    fsccl_status_t state;
    ASSERT_TRUE(collectives.run(call, false, &state).ok());
    for (int look = 0; look < 5; look++) {
      const Status waited = engine.wait(1, 20, &state);
      ASSERT_TRUE(waited.ok()) << waited.text();
      ASSERT_EQ(state, FSCCL_IN_PROGRESS);
    }
    gate.reach(1);
    EXPECT_TRUE(engine.wait(1, -1, &state).ok());
  });
}

// Plans grow with the number of ranks, so few calls may take much memory.
TEST(KeptCalls, AreLimitedByTheirMemory) {
  KeptCalls calls;
  for (uint64_t count = 0; count < 100; count++) {
    auto call = std::make_shared<KeptCall>();
    call->key.count = count;
    call->plan.steps.resize(50'000);
    const uint64_t memory = call->memory();
    ASSERT_GE(memory, 50'000 * sizeof(Step));
    calls.keep(std::move(call));
    ASSERT_LE(calls.size() * memory, KeptCalls::kMostMemory);
  }
  EXPECT_GT(calls.size(), 1u);
}

}  // namespace
}  // namespace fsccl::testing
