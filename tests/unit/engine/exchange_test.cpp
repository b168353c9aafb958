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

constexpr int kCallsInTurn = 100;

// Returns the number of calls in which rank 1 wrote its bytes to the ring of rank 0, and of those
// in which it wrote them to its own.
std::array<int, 2> rings_of_rank_1(OpCode op, const std::function<Plan(const Shape&)>& make) {
  std::array<int, 2> found{};
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
    for (int call = 0; call < kCallsInTurn; call++) {
      const auto value = static_cast<uint8_t>(1 + rank + 2 * call);
      std::vector<uint8_t> input(2 * piece, value), output(2 * piece);
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
      for (int ring = 0; ring < 2 && rank == 1; ring++) {
        size_t ring_bytes = 0, slot_bytes = 0;
        const std::byte* const begin = channel.inner->slots(ring, &ring_bytes, &slot_bytes);
        found[static_cast<size_t>(ring)] +=
            std::search_n(begin, begin + ring_bytes, piece, std::byte{value}) != begin + ring_bytes;
      }
      all.arrive_and_wait();
    }
  });
  return found;
}

TEST(Exchange, RanksThatSendToEachOtherExchangeTheirRings) {
  const auto [other, own] = rings_of_rank_1(OpCode::all_gather, [](const Shape& shape) {
    return move_slots(all_gather_movement(shape), shape.slot_bytes);
  });
  EXPECT_EQ(other + own, kCallsInTurn);
  EXPECT_GE(other, kCallsInTurn / 4);
  EXPECT_GE(own, kCallsInTurn / 4);
}

TEST(Exchange, ARankThatOnlySendsKeepsItsRing) {
  const auto [other, own] = rings_of_rank_1(OpCode::broadcast, [](const Shape& shape) {
    return move_slots(broadcast_movement(shape), shape.slot_bytes);
  });
  EXPECT_EQ(other, 0);
  EXPECT_EQ(own, kCallsInTurn);
}

}  // namespace
}  // namespace fsccl
