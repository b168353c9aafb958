#include "allocators/placement/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "../base/temporary_directory.h"

namespace fsccl {
namespace {

constexpr size_t kShared = 0, kOwn = 1, kBlocks = 2;

std::unique_ptr<Journal> journal(size_t history = 0, const std::string& log = "") {
  Result<std::unique_ptr<Journal>> opened = Journal::open(history, log);
  EXPECT_TRUE(opened.ok());
  return opened.take();
}

const MemoryUse& use_of(const std::vector<MemoryUse>& uses, UseKind kind, const std::string& unit,
                        uint64_t stream = 0) {
  const auto found = std::find_if(uses.begin(), uses.end(), [&](const MemoryUse& use) {
    return use.kind == kind && use.unit == unit && use.stream == stream;
  });
  EXPECT_NE(found, uses.end()) << name_of(kind) << " of " << unit;
  return *found;
}

TEST(Journal, CountsByKindUnitAndStream) {
  const auto j = journal();
  j->name_slot(2, UseKind::kParameters, "a");
  j->name_slot(3, UseKind::kGradients, "a");
  j->name_slot(4, UseKind::kParameters, "b");
  for (int step = 0; step < 3; step++) {
    j->slot_taken(j->slot(2), kShared, 0x1000, 8192, 5000);
    j->slot_taken(j->slot(2), kOwn, 0x9000, 8192, 5000);  // a writable copy beside it
    j->slot_taken(j->slot(3), kOwn, 0x20000, 4096, 1);
    j->slot_given_back(j->slot(2), kShared);
    j->slot_given_back(j->slot(2), kOwn);
    j->slot_given_back(j->slot(3), kOwn);
  }
  j->slot_taken(j->slot(4), kShared, 0x1000, 4096, 4096);
  j->block_taken({UseKind::kBlock, {}, 7}, 0x50000, 64, 10);
  j->block_taken({UseKind::kBlock, {}, 8}, 0x60000, 128, 100);
  j->block_given_back(0x60000, 7);

  const std::vector<MemoryUse> uses = j->uses();
  EXPECT_EQ(uses.size(), 5u);
  const MemoryUse& a = use_of(uses, UseKind::kParameters, "a");
  EXPECT_EQ(a.live, 0u);
  EXPECT_EQ(a.peak, 16384u);
  EXPECT_EQ(a.allocations, 6u);
  EXPECT_EQ(a.frees, 6u);
  EXPECT_EQ(a.allocated, 6 * 8192u);
  EXPECT_EQ(use_of(uses, UseKind::kGradients, "a").peak, 4096u);
  EXPECT_EQ(use_of(uses, UseKind::kParameters, "b").live, 4096u);
  EXPECT_EQ(use_of(uses, UseKind::kBlock, "", 7).live, 64u);
  EXPECT_EQ(use_of(uses, UseKind::kBlock, "", 8).live, 0u);
  EXPECT_EQ(j->live_peak(), 16384u + 4096);
}

// A slot that repeats what it did before is only noted. The counters of its use are brought up to
// date when somebody reads them, and are then the same as if each event had been counted at once.
TEST(Journal, CountsWhatComesAgainWhenSomebodyAsks) {
  for (const size_t history : {0, 64}) {
    const auto j = journal(history);
    j->name_slot(2, UseKind::kParameters, "a");
    j->name_slot(3, UseKind::kParameters, "a");
    Journal::Slot &two = j->slot(2), &three = j->slot(3);
    j->slot_taken(two, kOwn, 0x1000, 8192, 5000);
    j->slot_given_back(two, kOwn);
    j->slot_taken(three, kOwn, 0x1000, 4096, 4096);
    j->slot_given_back(three, kOwn);
    for (int step = 0; step < 3; step++) {
      j->slot_taken_again(two, kOwn, 0x10000, 8192, 5000, 8192);
      j->slot_given_back_again(two, kOwn, 0);
      j->slot_taken_again(three, kOwn, 0x20000, 4096, 4096, 4096);
      if (step < 2) j->slot_given_back_again(three, kOwn, 0);
    }
    EXPECT_EQ(j->live_in_slots(), 4096u);
    const JournalCopy copy = j->copy();
    ASSERT_EQ(copy.uses.size(), 1u);
    const MemoryUse& a = copy.uses[0];
    EXPECT_EQ(std::tuple(a.live, a.peak, a.allocations, a.frees, a.allocated),
              std::tuple(4096u, 8192u, 8u, 7u, 4 * 12288u));
    ASSERT_EQ(copy.live.size(), 1u);
    EXPECT_EQ(copy.live[0].address, 0x20000u);
    EXPECT_EQ(copy.events.size(), history ? 15u : 0u);
    // Then slot 2 gets other bytes while slot 3 is held.
    j->slot_taken(two, kOwn, 0x40000, 12288, 12288);
    j->slot_given_back(three, kOwn);
    j->slot_given_back(two, kOwn);
    EXPECT_EQ(j->uses()[0].peak, 16384u);
    EXPECT_EQ(j->uses()[0].allocated, 4 * 12288u + 12288);
    EXPECT_EQ(j->uses()[0].live, 0u);
  }
}

// Two parts of a use are held together for the first time, by slots that repeat. The peak of the
// use sees that at once, and so does the peak of slots and blocks together.
TEST(Journal, SeesPeaksThatComeOfSlotsElsewhere) {
  const auto j = journal();
  j->name_slot(2, UseKind::kParameters, "a");
  Journal::Slot& slot = j->slot(2);
  for (const size_t part : {kShared, kOwn}) {
    j->slot_taken(slot, part, 0x1000, 4096, 4096);
    j->slot_given_back(slot, part);
  }
  EXPECT_EQ(j->uses()[0].peak, 4096u);
  j->slot_taken_again(slot, kShared, 0x1000, 4096, 4096, 4096);
  j->block_taken({}, 0x50000, 1024, 1000);
  j->slot_taken_again(slot, kOwn, 0x9000, 4096, 4096, 4096);
  EXPECT_EQ(j->live_peak(), 8192u + 1024);
  j->slot_given_back_again(slot, kShared, 0);
  j->slot_given_back_again(slot, kOwn, 0);
  EXPECT_EQ(use_of(j->uses(), UseKind::kParameters, "a").peak, 8192u);
}

TEST(Journal, KeepsTheFiguresOfUnitsThatAreGone) {
  const auto j = journal();
  // Each time the unit is made anew, with another key and the same name.
  for (uint64_t key = 1; key <= 3; key++) {
    j->name_slot(key, UseKind::kParameters, "a");
    j->slot_taken(j->slot(key), kShared, 0x1000, 4096, 4096);
    j->slot_given_back(j->slot(key), kShared);
    j->forget_slot(key);
  }
  ASSERT_EQ(j->uses().size(), 1u);
  EXPECT_EQ(j->uses()[0].allocations, 3u);
}

TEST(Journal, CopiesWhatIsLiveAndTheLastEvents) {
  const auto j = journal(4);
  j->name_slot(2, UseKind::kParameters, "a");
  j->grown(kShared, 0x1000, 1 << 20);
  j->slot_taken(j->slot(2), kShared, 0x3000, 4096, 4000);
  j->grown(kBlocks, 0x900000, 1 << 20);
  j->block_taken({}, 0x900000, 64, 10);
  j->slot_refused(2, 1 << 30, 77);
  j->released(kBlocks, 1 << 19);
  const JournalCopy copy = j->copy();
  EXPECT_EQ(copy.lost, 2u);
  ASSERT_EQ(copy.events.size(), 4u);
  EXPECT_EQ(copy.events[0].action, JournalAction::kGrown);
  EXPECT_EQ(copy.events[0].address, 0x900000u);
  EXPECT_EQ(copy.events[2].action, JournalAction::kRefused);
  EXPECT_EQ(copy.events[2].bytes, 1u << 30);
  EXPECT_EQ(copy.events[2].requested, 77u);
  EXPECT_EQ(copy.events[3].action, JournalAction::kReleased);
  EXPECT_EQ(copy.events[3].address, 0x900000u + (1 << 19));
  for (size_t i = 1; i < 4; i++) EXPECT_LE(copy.events[i - 1].time_us, copy.events[i].time_us);
  ASSERT_EQ(copy.live.size(), 2u);
  EXPECT_EQ(copy.live[0].address, 0x3000u);
  EXPECT_EQ(copy.live[0].requested, 4000u);
  EXPECT_EQ(copy.live[1].address, 0x900000u);
  EXPECT_EQ(copy.parts[kShared].bytes, 1u << 20);
  EXPECT_EQ(copy.parts[kBlocks].bytes, 1u << 19);
}

TEST(Journal, LogsAndFlushesAtAStepsEnd) {
  const TemporaryDirectory directory;
  const auto j = journal(0, directory.path("log"));
  j->name_slot(2, UseKind::kParameters, "a");
  j->slot_taken(j->slot(2), kShared, 0x3000, 4096, 4000);
  j->slot_given_back(j->slot(2), kShared);
  EXPECT_EQ(directory.read("log").find("0x3000"), std::string::npos);
  j->step();
  EXPECT_NE(directory.read("log").find(",allocate,0x3000,4096,0x0\n"), std::string::npos);
  EXPECT_NE(directory.read("log").find(",free,0x3000,4096,0x0\n"), std::string::npos);
}

// In a step that repeats, the peak is looked at only if blocks were taken since the step before
// began. It does not matter at which place of the step they were taken.
TEST(Journal, SeesThePeakOfBlocksBesideAStepThatRepeats) {
  const auto j = journal();
  j->name_slot(2, UseKind::kParameters, "a");
  Journal::Slot& slot = j->slot(2);
  j->slot_taken(slot, kOwn, 0x1000, 4096, 4096);
  j->slot_given_back(slot, kOwn);
  for (uint64_t blocks = 1; blocks < 4; blocks++) {
    j->step();
    j->step();
    for (const bool before : {false, true}) {
      if (before) j->block_taken({}, 0x50000 * blocks, 1024, 1000);
      j->slot_taken_again(slot, kOwn, 0x1000, 4096, 4096, 4096);
      j->slot_given_back_again(slot, kOwn, 0);
      EXPECT_EQ(j->live_peak(), 4096u + (before ? blocks : blocks - 1) * 1024);
      j->step();
    }
    EXPECT_EQ(j->live_peak(), 4096u + blocks * 1024);
  }
}

// Each slot is taken before the one before it is given back. So a copy that is made at any moment
// contains one slot, or two that follow each other. A copy that mixed two moments could contain
// none, or two others.
TEST(Journal, CopiesAreOfOneMoment) {
  constexpr uint64_t kSlots = 64;
  const auto j = journal();
  std::vector<Journal::Slot*> slots;
  for (uint64_t key = 0; key < kSlots; key++) {
    j->name_slot(key, UseKind::kParameters, "layer" + std::to_string(key));
    slots.push_back(&j->slot(key));
    j->slot_taken(*slots[key], kOwn, 4096 * key, 4096, 4096);
    j->slot_given_back(*slots[key], kOwn);
  }
  j->slot_taken(*slots[0], kOwn, 0, 4096, 4096);
  std::atomic<bool> over{false};
  std::atomic<uint64_t> events{0};
  std::thread program([&] {
    for (uint64_t at = 0; !over; at = (at + 1) % kSlots) {
      const uint64_t next = (at + 1) % kSlots;
      j->slot_taken_again(*slots[next], kOwn, 4096 * next, 4096, 4096, 2 * 4096);
      j->slot_given_back_again(*slots[at], kOwn, 4096);
      events++;
    }
  });
  uint64_t torn = 0;
  for (int i = 0; i < 5'000 || events < 1000; i++) {
    const JournalCopy copy = j->copy();
    uint64_t live = 0;
    for (const MemoryUse& use : copy.uses) live += use.live;
    const size_t held = copy.live.size();
    const bool follow =
        held == 2 && (copy.live[1].address - copy.live[0].address == 4096 ||
                      copy.live[1].address - copy.live[0].address == 4096 * (kSlots - 1));
    torn += (held != 1 && !follow) || live != 4096 * held;
  }
  over = true;
  program.join();
  EXPECT_EQ(torn, 0u);
}

// Threads read the journal while others take slots and give them back, and the sums that they read
// belong together. With a history, slots take the lock; without one, slots that come again do not.
class JournalInUse : public ::testing::TestWithParam<size_t> {};

TEST_P(JournalInUse, IsReadWhileItIsWritten) {
  constexpr uint64_t kRounds = 20'000, kSlots = 5;
  const auto j = journal(GetParam());
  for (uint64_t key = 1; key <= kSlots; key++)
    j->name_slot(key, UseKind::kParameters, key % 2 ? "a" : "b");
  std::array<Journal::Slot*, kSlots + 1> found{};
  for (uint64_t key = 1; key <= kSlots; key++) found[key] = &j->slot(key);
  std::thread blocks([&] {
    for (uint64_t i = 0; i < kRounds; i++) {
      j->block_taken({}, 0x900000 + i % 7 * 64, 64, 10);
      j->block_given_back(0x900000 + i % 7 * 64);
    }
  });
  std::thread slots([&] {
    for (uint64_t i = 0; i < kRounds; i++) {
      const uint64_t key = i % kSlots + 1, bytes = 4096 * key;
      Journal::Slot& slot = *found[key];
      if (i < kSlots || i % 1000 < kSlots)
        j->slot_taken(slot, kOwn, 0x10000 * key, bytes, bytes - 96);
      else
        j->slot_taken_again(slot, kOwn, 0x10000 * key, bytes, bytes - 96, bytes);
      if (i % 64 == 0) j->name_slot(100 + i, UseKind::kGradients, "later" + std::to_string(i % 5));
      i % 1000 < kSlots ? j->slot_given_back(slot, kOwn) : j->slot_given_back_again(slot, kOwn, 0);
      if (i % 64 == 0) j->forget_slot(100 + i);
    }
  });
  for (int i = 0; i < 200; i++) {
    const JournalCopy copy = j->copy();
    uint64_t live = 0, by_use = 0;
    for (const LiveMemory& memory : copy.live) {
      live += memory.bytes;
      if (memory.address >= 0x900000) continue;
      ASSERT_EQ(memory.bytes, memory.address / 0x10000 * 4096);  // both are of the same slot
      ASSERT_EQ(memory.requested, memory.bytes - 96);
    }
    for (const MemoryUse& use : copy.uses) {
      by_use += use.live;
      ASSERT_LE(use.live, use.peak);
      ASSERT_EQ(use.allocations - use.frees, use.live ? 1u : 0u);
    }
    ASSERT_EQ(live, by_use);
  }
  blocks.join();
  slots.join();
  const std::vector<MemoryUse> uses = j->uses();
  EXPECT_EQ(
      use_of(uses, UseKind::kParameters, "a").frees + use_of(uses, UseKind::kParameters, "b").frees,
      kRounds);
  EXPECT_EQ(use_of(uses, UseKind::kBlock, "").frees, kRounds);
  EXPECT_GE(j->live_peak(), 5 * 4096u);
  EXPECT_LE(j->live_peak(), 5 * 4096u + 64);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutHistory, JournalInUse, ::testing::Values(0, 64));

}  // namespace
}  // namespace fsccl
