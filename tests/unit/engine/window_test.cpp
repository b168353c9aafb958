// The window, without a transport; and every rule that it states, broken on purpose.
#include "engine/window.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace fsccl {
namespace {

struct Broken final : InvariantGuard {
  std::vector<std::string> rules;
  void broken(const char* rule, const char*, int) noexcept override { rules.emplace_back(rule); }
};

constexpr uint32_t kFirst = 100;
constexpr size_t kSlot = 1024;

Fingerprint call(uint64_t sequence) { return {.op = OpCode::broadcast, .sequence = sequence}; }

class Windows : public ::testing::Test {
 protected:
  Windows() { window_.set_ring(SlotRing(FSCCL_TRANSPORT_SLOTS * kSlot, kSlot, false)); }
  void TearDown() override { EXPECT_EQ(broken_.rules, expected_); }
  void expect_broken(const std::string& rule) { expected_.push_back(rule); }

  Broken broken_;
  std::vector<std::string> expected_;
  Window window_{kFirst, false, broken_};
};

TEST_F(Windows, ARoundBeginsWhenAllHaveLeftWhatItReuses) {
  EXPECT_TRUE(window_.may_begin(kFirst + kWindow));
  EXPECT_FALSE(window_.may_begin(kFirst + kWindow + 1));
  window_.all_entered(kFirst + 1);
  EXPECT_TRUE(window_.may_begin(kFirst + kWindow + 1));
  EXPECT_FALSE(window_.may_begin(kFirst + kWindow + 2));
}

TEST_F(Windows, PendingRoundsAreSettledInOrderAndNoMoreThanIsNeeded) {
  for (uint32_t i = 0; i < 3; i++) ASSERT_TRUE(window_.add_pending(kFirst + i, false, call(i + 1)));
  for (uint32_t i = 1; i < 2; i++) {
    Window::Round* const round = window_.to_settle(kFirst + 1);
    ASSERT_TRUE(round);
    EXPECT_EQ(round->fingerprint.sequence, i);
    window_.settle();
  }
  ASSERT_TRUE(window_.to_settle(kFirst + 1));
  window_.settle();
  EXPECT_FALSE(window_.to_settle(kFirst + 1)) << "peers were seen in the round of that tick";
  EXPECT_EQ(window_.pending(), 1u);
}

// A peer that tells nothing of a quiet round is known to have entered it by a later one.
TEST_F(Windows, QuietRoundsAreSettledWithTheNextThatIsNot) {
  ASSERT_TRUE(window_.add_pending(kFirst, true, call(1)));
  ASSERT_TRUE(window_.add_pending(kFirst + 1, true, call(2)));
  ASSERT_TRUE(window_.add_pending(kFirst + 2, false, call(3)));
  EXPECT_EQ(window_.to_settle(kFirst + 1)->fingerprint.sequence, 3u);
  window_.settle();
  EXPECT_EQ(window_.pending(), 0u);
  EXPECT_TRUE(window_.may_begin(kFirst + 2 + kWindow));
}

TEST_F(Windows, WhatWasToldToNobodyIsPartOfTheHistory) {
  EXPECT_EQ(window_.unheard_history(), 0u);
  window_.unheard(call(5));
  window_.unheard(call(6));
  EXPECT_NE(window_.unheard_history(), 0u);
  EXPECT_EQ(window_.before_unheard(call(7)), 5u);
  EXPECT_EQ(window_.before_unheard(call(5)), 0u) << "that is the call itself";
  window_.heard(kFirst + 2);
  EXPECT_EQ(window_.unheard_history(), 0u);
}

TEST_F(Windows, SlotsOfAWindowDoNotOverlap) {
  Plan plan;
  plan.ticks = 2;
  plan.slots = {kSlot, kSlot / 2};
  std::vector<std::pair<size_t, size_t>> used;  // slots of the last kWindow ticks
  for (uint32_t round = 0; round < 100; round++) {
    ASSERT_TRUE(window_.place(plan, kFirst + 2 * round));
    for (uint16_t tick = 0; tick < 2; tick++) {
      const size_t begin = window_.slot_at(tick), end = begin + plan.slots[tick];
      EXPECT_LE(end, FSCCL_TRANSPORT_SLOTS * kSlot);
      for (const auto& [other_begin, other_end] : used)
        EXPECT_TRUE(end <= other_begin || other_end <= begin) << round;
      used.emplace_back(begin, end);
      if (used.size() >= kWindow) used.erase(used.begin());
    }
  }
}

TEST_F(Windows, TicksDoNotGoBack) {
  window_.set_next_tick(kFirst + 4);
  window_.set_next_tick(kFirst + 3);
  expect_broken("static_cast<int32_t>(tick - next_tick_) >= 0");
}

TEST_F(Windows, PeersDoNotComeBack) {
  window_.all_entered(kFirst + 4);
  window_.all_entered(kFirst + 3);
  expect_broken("static_cast<int32_t>(tick - left_) >= 0");
}

TEST_F(Windows, NoMoreRoundsArePendingThanItHolds) {
  for (uint32_t i = 0; i < kWindow; i++)
    ASSERT_TRUE(window_.add_pending(kFirst + i, false, call(i + 1)));
  EXPECT_FALSE(window_.add_pending(kFirst + kWindow, false, call(kWindow + 1)));
  expect_broken("pending_count_ < kWindow");
  EXPECT_EQ(window_.pending(), static_cast<uint32_t>(kWindow));
}

}  // namespace
}  // namespace fsccl
