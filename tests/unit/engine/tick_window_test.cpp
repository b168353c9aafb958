// Tests the window of ticks without a transport, and breaks every rule that it states on purpose.
#include "engine/tick_window.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/engine/broken_rules.h"

namespace fsccl {
namespace {

constexpr uint32_t kFirst = 100;
constexpr size_t kSlotBytes = 1024;

Fingerprint call(uint64_t sequence) { return {.op = OpCode::broadcast, .sequence = sequence}; }

class TickWindows : public ::testing::Test {
 protected:
  TickWindows() {
    window_.set_ring(SlotRing(FSCCL_TRANSPORT_SLOTS * kSlotBytes, kSlotBytes, false), false);
  }
  void TearDown() override { EXPECT_EQ(broken_.rules, expected_); }
  void expect_broken(const std::string& rule) { expected_.push_back(rule); }

  BrokenRules broken_;
  std::vector<std::string> expected_;
  TickWindow window_{kFirst, false, broken_};
};

TEST_F(TickWindows, ARoundBeginsWhenAllHaveLeftWhatItReuses) {
  EXPECT_TRUE(window_.may_begin(kFirst + kTickWindow));
  EXPECT_FALSE(window_.may_begin(kFirst + kTickWindow + 1));
  window_.all_entered(kFirst + 1);
  EXPECT_TRUE(window_.may_begin(kFirst + kTickWindow + 1));
  EXPECT_FALSE(window_.may_begin(kFirst + kTickWindow + 2));
}

TEST_F(TickWindows, PendingRoundsAreConfirmedInOrderAndNoMoreThanIsNeeded) {
  for (uint32_t i = 0; i < 3; i++) ASSERT_TRUE(window_.add_pending(kFirst + i, false, call(i + 1)));
  for (uint32_t i = 1; i < 2; i++) {
    TickWindow::Round* const round = window_.next_to_confirm(kFirst + 1);
    ASSERT_TRUE(round);
    EXPECT_EQ(round->fingerprint.sequence, i);
    window_.confirm();
  }
  ASSERT_TRUE(window_.next_to_confirm(kFirst + 1));
  window_.confirm();
  EXPECT_FALSE(window_.next_to_confirm(kFirst + 1)) << "peers were seen in the round of that tick";
  EXPECT_EQ(window_.pending(), 1u);
}

// A peer does not signal in a quiet round. Its signal of a later round shows that it has entered
// the quiet ones as well.
TEST_F(TickWindows, QuietRoundsAreConfirmedWithTheNextThatIsNot) {
  ASSERT_TRUE(window_.add_pending(kFirst, true, call(1)));
  ASSERT_TRUE(window_.add_pending(kFirst + 1, true, call(2)));
  ASSERT_TRUE(window_.add_pending(kFirst + 2, false, call(3)));
  EXPECT_EQ(window_.next_to_confirm(kFirst + 1)->fingerprint.sequence, 3u);
  window_.confirm();
  EXPECT_EQ(window_.pending(), 0u);
  EXPECT_TRUE(window_.may_begin(kFirst + 2 + kTickWindow));
}

TEST_F(TickWindows, WhatWasToldToNobodyIsPartOfTheHistory) {
  EXPECT_EQ(window_.unheard_history(), 0u);
  window_.unheard(call(5));
  window_.unheard(call(6));
  EXPECT_NE(window_.unheard_history(), 0u);
  EXPECT_EQ(window_.before_unheard(call(7)), 5u);
  EXPECT_EQ(window_.before_unheard(call(5)), 0u) << "that is the call itself";
  window_.heard(kFirst + 2);
  EXPECT_EQ(window_.unheard_history(), 0u);
}

TEST_F(TickWindows, SlotsOfAWindowDoNotOverlap) {
  Plan plan;
  plan.ticks = 2;
  plan.slots = {kSlotBytes, kSlotBytes / 2};
  std::vector<std::pair<size_t, size_t>> used;  // the slots of the last kTickWindow ticks
  for (uint32_t round = 0; round < 100; round++) {
    ASSERT_TRUE(window_.place(plan, kFirst + 2 * round));
    for (uint16_t tick = 0; tick < 2; tick++) {
      const size_t begin = window_.slot(tick).at, end = begin + plan.slots[tick];
      EXPECT_LE(end, FSCCL_TRANSPORT_SLOTS * kSlotBytes);
      for (const auto& [other_begin, other_end] : used)
        EXPECT_TRUE(end <= other_begin || other_end <= begin) << round;
      used.emplace_back(begin, end);
      if (used.size() >= kTickWindow) used.erase(used.begin());
    }
  }
}

TEST_F(TickWindows, TicksDoNotGoBack) {
  window_.set_next_tick(kFirst + 4);
  window_.set_next_tick(kFirst + 3);
  expect_broken("static_cast<int32_t>(tick - next_tick_) >= 0");
}

TEST_F(TickWindows, PeersDoNotComeBack) {
  window_.all_entered(kFirst + 4);
  window_.all_entered(kFirst + 3);
  expect_broken("static_cast<int32_t>(tick - oldest_in_use_) >= 0");
}

TEST_F(TickWindows, NoMoreRoundsArePendingThanItHolds) {
  for (uint32_t i = 0; i < kTickWindow; i++)
    ASSERT_TRUE(window_.add_pending(kFirst + i, false, call(i + 1)));
  EXPECT_FALSE(window_.add_pending(kFirst + kTickWindow, false, call(kTickWindow + 1)));
  expect_broken("pending_count_ < kTickWindow");
  EXPECT_EQ(window_.pending(), static_cast<uint32_t>(kTickWindow));
}

}  // namespace
}  // namespace fsccl
