#include "transports/mirror/mirrors.h"

#include <gtest/gtest.h>

#include <string_view>

#include "base/round_up.h"
#include "plan/turn.h"
#include "tests/unit/engine/span_of_slots.h"
#include "transports/transports.h"

namespace fsccl::mirror {
namespace {

// However many ranks there are, what plans fill in a turn goes round in the memory for ten turns,
// and small slots in that for ten of them. Larger slots have memory of their own.
TEST(MirrorRings, TurnsGoRoundInMemoryForTenOfThem) {
  for (size_t ranks = 2; ranks <= 64; ranks++)
    for (const char* network : {"tcp", "ucx"}) {
      const size_t slot = round_up(network_slot_bytes(network, ranks), Mirrors::kPage),
                   ring_bytes = ring_bytes_of(slot);
      const auto taken = [&](size_t bytes) {
        SlotRing ring(ring_bytes, slot, true);
        const SlotSpan span = span_of_slots(ring, bytes);
        EXPECT_LE(span.end, ring_bytes);
        return span.bytes();
      };
      const size_t turn = turn_bytes(slot, true, static_cast<int>(ranks)),
                   small = turn / 16 / 64 * 64;
      EXPECT_LE(taken(turn), FSCCL_TRANSPORT_SLOTS * turn) << ranks << network;
      EXPECT_LE(taken(small), FSCCL_TRANSPORT_SLOTS * round_up(small, Mirrors::kPage))
          << ranks << network;
      EXPECT_EQ(slot > turn, ranks == 2 && std::string_view(network) == "tcp") << ranks << network;
    }
}

}  // namespace
}  // namespace fsccl::mirror
