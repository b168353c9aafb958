#include "engine/slot_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <random>

#include "plan/plan.h"
#include "tests/unit/engine/span_of_slots.h"

namespace fsccl {
namespace {

// A slot is a turn here, and a ring has a part for slots of a 16th of it.
constexpr size_t kSlot = 512 << 10, kSmall = kSlot / 16;
constexpr size_t kRing = FSCCL_TRANSPORT_SLOTS * (kSlot + kSmall);

struct Placed {
  size_t begin, bytes;
};

// Takes slots of the sizes that `size` gives. Nothing that may be in use is given again, and
// nothing lies outside.
template <class Size>
void check(SlotRing ring, size_t ring_bytes, Size size) {
  std::deque<Placed> used;
  for (int tick = 0; tick < 20'000; tick++) {
    const size_t bytes = size(tick);
    const Placed now{ring.next(bytes, false).at, bytes};
    ASSERT_LE(now.begin + now.bytes, ring_bytes);
    for (const Placed& one : used)
      ASSERT_TRUE(now.begin + now.bytes <= one.begin || one.begin + one.bytes <= now.begin)
          << "tick " << tick;
    used.push_back(now);
    if (used.size() == kTickWindow) used.pop_front();
  }
}

TEST(SlotRing, NothingInUseIsGivenAgain) {
  std::mt19937 random(7);
  const auto any = [&](size_t most) {
    return std::uniform_int_distribution<size_t>(1, most)(random) / 64 * 64;
  };
  for (const size_t turn : {size_t{0}, kSlot}) {
    const SlotRing ring(kRing, kSlot, turn);
    check(ring, kRing, [](int) { return kSlot; });
    check(ring, kRing, [](int) { return kSmall; });
    check(ring, kRing, [](int tick) { return tick / 50 % 2 ? kSlot : kSmall; });
    check(ring, kRing, [&](int) { return any(kSlot); });
    check(ring, kRing, [&](int) { return random() % 2 ? any(kSlot) : any(2 * kSmall); });
  }
  check(SlotRing(FSCCL_TRANSPORT_SLOTS * kSlot, kSlot, kSlot), FSCCL_TRANSPORT_SLOTS * kSlot,
        [&](int) { return any(kSlot); });
}

// Each kind of slot goes round in a ring of ten times its most bytes, and the rings lie apart.
TEST(SlotRing, SlotsOfEachSizeGoRoundInARingOfTheirOwn) {
  std::mt19937 random(7);
  for (const size_t large : {kSlot + 64, 2 * kSlot, 16 * kSlot}) {
    const size_t all = FSCCL_TRANSPORT_SLOTS * (large + kSlot + kSmall);
    const SlotRing made(all, large, kSlot);
    check(made, all, [&](int) {
      const size_t most = large >> random() % 13;
      return std::uniform_int_distribution<size_t>(1, most)(random) / 64 * 64;
    });
    SlotRing ring = made;
    size_t end = 0;
    for (const size_t most : {kSmall, kSlot, large}) {
      const SlotSpan span = span_of_slots(ring, most);
      EXPECT_EQ(span.begin, end);
      EXPECT_EQ(span.bytes(), FSCCL_TRANSPORT_SLOTS * most);
      end = span.end;
    }
  }
}

TEST(SlotRing, SmallOnesStayAtTheBeginning) {
  SlotRing ring(kRing, kSlot, kSlot);
  const size_t reached = span_of_slots(ring, kSmall).end;
  EXPECT_EQ(reached, FSCCL_TRANSPORT_SLOTS * kSmall);
  EXPECT_GE(ring.next(kSmall + 64, false).at, reached);
  SlotRing whole(kRing, kSlot, 0);
  EXPECT_GT(span_of_slots(whole, kSmall).end, kRing - kSmall);
}

// Two ranks exchange their rings once in each round of the ring, so that a rank's next slot at a
// place lies where the peer's last slot at this place was.
TEST(SlotRing, ASlotLiesWhereThePeersLastSlotLay) {
  SlotRing ring(FSCCL_TRANSPORT_SLOTS * kSlot, kSlot, 0);
  std::map<size_t, bool> last;
  int again = 0;
  for (int tick = 0; tick < 1000; tick++) {
    const SlotPlace expected = ring.place_of_next(kSlot, true), place = ring.next(kSlot, true);
    EXPECT_EQ(place.at, expected.at);
    EXPECT_EQ(place.exchanged, expected.exchanged);
    if (const auto found = last.find(place.at); found != last.end()) {
      EXPECT_NE(place.exchanged, found->second) << "tick " << tick;
      again++;
    }
    last[place.at] = place.exchanged;
  }
  EXPECT_EQ(again, 1000 - int{FSCCL_TRANSPORT_SLOTS});
}

// Slots in which only one rank sends are written again by that rank, in the same ring.
TEST(SlotRing, RingsAreKeptIfOneRankSends) {
  SlotRing ring(FSCCL_TRANSPORT_SLOTS * kSlot, kSlot, 0);
  for (int tick = 0; tick < 100; tick++) EXPECT_FALSE(ring.next(kSlot, false).exchanged);
}

}  // namespace
}  // namespace fsccl
