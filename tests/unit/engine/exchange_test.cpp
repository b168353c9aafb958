// Tests that two ranks that send to each other exchange the rings of their slots (slot_ring.h).
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>

#include "engine/engine.h"
#include "plan/collectives.h"
#include "tests/unit/wrapped_channel.h"

namespace fsccl {
namespace {

using testing::options_over;
using testing::over_channel;
using testing::Wrapped;

// The number of calls, and of those in which rank 1 wrote its bytes to the ring of rank 0 or to its
// own.
struct RingsUsed {
  int calls = 0, other = 0, own = 0;
};

// Makes so many calls that the ranks come to the end of the rings four times.
RingsUsed rings_of_rank_1(OpCode op, const std::function<Plan(const Shape&)>& make) {
  RingsUsed used;
  std::barrier all(2);
  over_channel(2, [&](int rank, Wrapped& channel, uint32_t tick) {
    Engine engine(options_over(channel, rank, 2, tick));
    const size_t piece = engine.slot_bytes();  // so a ring has few pieces
    const Plan plan = make({.rank = rank,
                            .ranks = 2,
                            .count = piece,
                            .dtype = FSCCL_UINT8,
                            .root = 1,
                            .slot_bytes = engine.slot_bytes()});
    size_t ring_bytes = 0, slot_bytes = 0;
    const std::array rings{channel.inner->slots(0, &ring_bytes, &slot_bytes),
                           channel.inner->slots(1, &ring_bytes, &slot_bytes)};
    const auto holds = [&](const std::byte* ring, uint32_t value) {
      const auto *begin = reinterpret_cast<const uint32_t*>(ring), *end = begin + ring_bytes / 4;
      return std::search_n(begin, end, piece / 4, value) != end;
    };
    const auto calls = static_cast<int>(4 * ring_bytes / piece);
    for (int call = 0; call < calls; call++) {
      const auto value = static_cast<uint32_t>(1 + rank + 2 * call);
      std::vector<uint32_t> input(piece / 2, value), output(piece / 2);
      Operation* operation = nullptr;
      ASSERT_TRUE(
          engine
              .acquire(&operation, {}, {.op = op, .dtype = FSCCL_UINT8, .root = 1, .count = piece})
              .ok());
      operation->plan = &plan;
      operation->inline_bindings[0].base = reinterpret_cast<std::byte*>(input.data());
      operation->inline_bindings[1].base = reinterpret_cast<std::byte*>(output.data());
      fsccl_status_t state;
      ASSERT_TRUE(engine.submit(*operation, true, &state).ok());
      all.arrive_and_wait();
      if (rank == 1) {
        used.calls++;
        used.other += holds(rings[0], value);
        used.own += holds(rings[1], value);
      }
      all.arrive_and_wait();
    }
  });
  return used;
}

TEST(Exchange, RanksThatSendToEachOtherExchangeTheirRings) {
  const RingsUsed used = rings_of_rank_1(OpCode::all_gather, [](const Shape& shape) {
    return move_slots(all_gather_movement(shape), shape.slot_bytes);
  });
  EXPECT_EQ(used.other + used.own, used.calls);
  EXPECT_GE(used.other, used.calls / 3);
  EXPECT_GE(used.own, used.calls / 3);
}

TEST(Exchange, ARankThatOnlySendsKeepsItsRing) {
  const RingsUsed used = rings_of_rank_1(OpCode::broadcast, [](const Shape& shape) {
    return move_slots(broadcast_movement(shape), shape.slot_bytes);
  });
  EXPECT_EQ(used.other, 0);
  EXPECT_EQ(used.own, used.calls);
}

}  // namespace
}  // namespace fsccl
