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

}  // namespace
}  // namespace fsccl::testing
