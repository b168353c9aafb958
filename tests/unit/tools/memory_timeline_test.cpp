#include "tools/memory_timeline.h"

#include <gtest/gtest.h>

#include "snapshot_text.h"

namespace fsccl::trace {
namespace {

MemorySnapshot sample() {
  std::string error;
  auto snapshot = parse_memory_snapshot(sample_snapshot().dump(), "a.json", &error);
  EXPECT_TRUE(snapshot) << error;
  return snapshot.value_or(MemorySnapshot{});
}

TEST(MemoryTimeline, KnowsFromWhenToWhenEachSlotWasThere) {
  const MemorySnapshot snapshot = sample();
  const Timeline timeline = make_timeline(snapshot);
  struct Expected {
    uint64_t address, begin_us, end_us;
    const char* owner;
  };
  // The earlier block comes first: one was given back, and the other is still there.
  const Expected expected[] = {{0x31000, 1000, 1100, "block"},
                               {0x30000, 1000, 3000, "block"},
                               {0x10000, 1000, 1400, "unit a, parameters"},
                               {0x12000, 1200, 3000, "unit b, parameters"},
                               {0x20000, 1300, 1500, "unit a, gradients"},
                               {0x10000, 2600, 3000, "unit a, parameters"}};
  ASSERT_EQ(timeline.tenancies.size(), std::size(expected));
  for (size_t i = 0; i < std::size(expected); i++) {
    const Tenancy& tenancy = timeline.tenancies[i];
    EXPECT_EQ(tenancy.address, expected[i].address) << i;
    EXPECT_EQ(tenancy.begin_us, expected[i].begin_us) << i;
    EXPECT_EQ(tenancy.end_us, expected[i].end_us) << i;
    EXPECT_EQ(snapshot.owners[tenancy.owner], expected[i].owner) << i;
    EXPECT_EQ(tenancy.open_begin, i < 2) << i;
    EXPECT_EQ(tenancy.open_end, expected[i].end_us == 3000) << i;
  }
}

TEST(MemoryTimeline, SumsWhatIsLiveAndReserved) {
  const MemorySnapshot snapshot = sample();
  const Timeline timeline = make_timeline(snapshot);
  // The values are those before the first event, after each of the ten, and at the end, in pages.
  const double slots[] = {0, 0, 2, 2, 3, 3, 4, 2, 2, 1, 3, 3},
               blocks[] = {2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  const double reserved[] = {0, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4};
  ASSERT_EQ(timeline.moments.size(), std::size(slots));
  for (size_t i = 0; i < std::size(slots); i++) {
    EXPECT_EQ(timeline.moments[i].slots / 0x1000, slots[i]) << i;
    EXPECT_EQ(timeline.moments[i].blocks / 0x1000, blocks[i]) << i;
    EXPECT_EQ(timeline.moments[i].reserved_slots / 0x1000, reserved[i]) << i;
    EXPECT_EQ(timeline.moments[i].reserved_blocks / 0x1000, 2) << i;
  }
  EXPECT_EQ(timeline.peak, 6u);
  double at_peak = 0;
  for (const double bytes : timeline.owned_at_peak) at_peak += bytes;
  EXPECT_EQ(at_peak / 0x1000, 5);
}

TEST(MemoryTimeline, OfASnapshotWithoutEventsIsWhatIsLive) {
  MemorySnapshot snapshot = sample();
  snapshot.events.clear();
  const Timeline timeline = make_timeline(snapshot);
  EXPECT_EQ(timeline.tenancies.size(), 3u);
  EXPECT_EQ(timeline.moments.front().slots, 0x3000);
  EXPECT_EQ(timeline.moments.back().blocks, 0x1000);
  EXPECT_EQ(timeline.begin_us, timeline.end_us);
}

}  // namespace
}  // namespace fsccl::trace
