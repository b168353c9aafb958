// Tests which way a slot is written, on a clock that the writes themselves advance.
#include "engine/slot_stores.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace fsccl {
namespace {

constexpr uint64_t kPiece = 64 << 10, kStoreRing = 2 << 20;
constexpr int kAround = kStoreRing / kPiece;  // pieces until the ring is written again

int64_t now = 0;
int64_t clock_of_test() { return now; }

// Writes `count` pieces of `bytes`, and returns how many of them were streamed. On the test's clock
// plain stores take `cached_ns` a byte, and streaming stores 1.
int streamed(SlotStores& stores, int count, uint64_t bytes, int64_t cached_ns,
             uint64_t slot_bytes = 0) {
  int streaming = 0;
  for (int i = 0; i < count; i++) {
    const SlotStores::Write write = stores.begin(bytes, std::max(bytes, slot_bytes));
    const bool streams = write.stores == Stores::streaming;
    streaming += streams;
    now += static_cast<int64_t>(bytes) * (streams ? 1 : cached_ns);
    if (write.watched) stores.wrote(write);
  }
  return streaming;
}

TEST(SlotStores, FollowsTheMachine) {
  SlotStores stores(UINT64_MAX, kStoreRing, 1, SideBySide::none, clock_of_test);
  EXPECT_EQ(streamed(stores, 1000, kPiece, 2), 0);
  streamed(stores, 3 * kAround, kPiece, 20);  // the threads have moved to cores that are far apart
  EXPECT_GE(streamed(stores, 6000, kPiece, 20), 5700);
  EXPECT_EQ(stores.cores(), Cores::far);
  streamed(stores, 70 * kAround, kPiece, 2);  // and then to near cores again
  EXPECT_EQ(streamed(stores, 1000, kPiece, 2), 0);
  EXPECT_EQ(stores.cores(), Cores::near);
}

TEST(SlotStores, BeginsAsMeasuredAtStart) {
  SlotStores cached(UINT64_MAX, kStoreRing, 1, SideBySide::none, clock_of_test),
      streaming(4096, kStoreRing, 1, SideBySide::none, clock_of_test);
  EXPECT_EQ(streamed(cached, 10, 16384, 1), 0);
  EXPECT_EQ(streamed(streaming, 10, 16384, 1), 10);
}

TEST(SlotStores, SmallPiecesGoByTheStart) {
  SlotStores stores(1024, kStoreRing, 1, SideBySide::none, clock_of_test);
  EXPECT_EQ(streamed(stores, 1000, 512, 100), 0);
  EXPECT_EQ(streamed(stores, 1000, 2048, 1), 1000);
  EXPECT_FALSE(stores.past_caches(512));
  EXPECT_TRUE(stores.past_caches(2048));
}

// A slot that many pieces fill is written in the same way as if one piece filled it.
TEST(SlotStores, PiecesGoByTheirSlot) {
  SlotStores near(UINT64_MAX, kStoreRing, 1, SideBySide::none, clock_of_test),
      far(1024, kStoreRing, 1, SideBySide::none, clock_of_test);
  EXPECT_EQ(streamed(near, 100, 256, 2, kPiece), 0);
  EXPECT_EQ(streamed(far, 100, 256, 2, 512), 0);
  EXPECT_EQ(streamed(far, 100, 256, 2, 2048), 100);
  EXPECT_EQ(streamed(far, 100, 256, 2, kPiece), 100);
}

TEST(SlotStores, CopiesAsMeasuredWherePeersAreNear) {
  const auto near = [](SideBySide way) {
    return SlotStores(UINT64_MAX, kStoreRing, 1, way, clock_of_test);
  };
  EXPECT_FALSE(near(SideBySide::none).side_by_side(true) ||
               near(SideBySide::none).side_by_side(false));
  EXPECT_FALSE(near(SideBySide::from_slots).side_by_side(true));
  EXPECT_TRUE(near(SideBySide::from_slots).side_by_side(false));
  EXPECT_TRUE(near(SideBySide::both).side_by_side(true) &&
              near(SideBySide::both).side_by_side(false));
  const SlotStores far(4096, kStoreRing, 1, SideBySide::none, clock_of_test);
  EXPECT_FALSE(far.side_by_side(true));
  EXPECT_TRUE(far.side_by_side(false));
}

// One write during which the thread did not run does not change the choice.
TEST(SlotStores, AnInterruptionChangesNothing) {
  SlotStores stores(UINT64_MAX, kStoreRing, 1, SideBySide::none, clock_of_test);
  streamed(stores, 1000, kPiece, 2);
  streamed(stores, 1, kPiece, 100'000);
  EXPECT_EQ(streamed(stores, 1000, kPiece, 2), 0);
}

}  // namespace
}  // namespace fsccl
