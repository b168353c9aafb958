#include "transports/mirror/mirrors.h"

#include <gtest/gtest.h>

#include "base/round_up.h"
#include "plan/turn.h"
#include "tests/unit/engine/span_of_slots.h"
#include "transports/transports.h"

namespace fsccl::mirror {
namespace {

// Whatever size slots have, what plans fill in a turn goes round in the memory for ten turns, and
// small slots in that for ten of them. Larger slots have memory of their own.
void expect_turns_apart(size_t asked_bytes, size_t ranks) {
  const size_t slot = round_up(asked_bytes, Mirrors::kPage),
               ring_bytes = ring_bytes_of(slot, ranks),
               turn = turn_bytes(slot, true, static_cast<int>(ranks)), small = turn / 16 / 64 * 64;
  const auto taken = [&](size_t bytes) {
    SlotRing ring(ring_bytes, slot, turn);
    const SlotSpan span = span_of_slots(ring, bytes);
    EXPECT_LE(span.end, ring_bytes);
    return span.bytes();
  };
  EXPECT_LE(taken(turn), FSCCL_TRANSPORT_SLOTS * round_up(turn + small, Mirrors::kPage))
      << slot << " bytes, ranks: " << ranks;
  EXPECT_LE(taken(small), FSCCL_TRANSPORT_SLOTS * round_up(small, Mirrors::kPage))
      << slot << " bytes, ranks: " << ranks;
}

TEST(MirrorRings, TurnsGoRoundInMemoryForTenOfThem) {
  for (size_t ranks = 2; ranks <= 64; ranks++)
    for (const char* network : {"tcp", "ucx"})
      expect_turns_apart(network_slot_bytes(network, ranks), ranks);
  for (const size_t asked : {4u << 10, 64u << 10, 1u << 20, 5u << 20, 64u << 20})
    expect_turns_apart(asked, 3);
}

// A rank that sends alone fills larger slots than a turn, where a slot of each rank still takes
// 4 MiB in all.
TEST(MirrorRings, SlotsOverTcpAreLargerThanTurnsForUpToSevenRanks) {
  for (size_t ranks = 2; ranks <= 64; ranks++) {
    EXPECT_EQ(network_slot_bytes("tcp", ranks) > kMostTurnBytes, ranks < 8) << ranks;
    EXPECT_LE(network_slot_bytes("ucx", ranks), kMostTurnBytes) << ranks;
  }
}

}  // namespace
}  // namespace fsccl::mirror
