#include "allocators/placement/backed_bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

namespace fsccl {
namespace {

constexpr uint64_t kBackedPage = CollectiveRegion::kAlignment, kAddresses = uint64_t{1} << 40;

// A part of slots, with a map of which of its pages exist, as the system would have it.
class Part {
 public:
  explicit Part(uint64_t most) : slots_(most, true), limit_(most) {
    slots_.set_capacity(most, most, kAddresses);
  }

  bool take(uint64_t key, uint64_t pages) {
    const Result<SlotGrant> grant = slots_.take(key, pages * kBackedPage, true, ++position_);
    if (!grant.ok()) return false;
    const uint64_t begin = grant.value().offset, end = begin + pages * kBackedPage;
    held_[key] = {begin, end};
    if (end > backed_.whole()) carry_out(backed_.place(begin, end, slots_, limit_));
    needed_ = std::max({needed_, slots_.live(), slots_.plan_bytes()});
    check();
    return true;
  }
  void give_back(uint64_t key) {
    ASSERT_TRUE(slots_.give_back(key, ++position_).ok());
    last_[held_.at(key)] = position_;
    held_.erase(key);
  }
  void end_step() {
    slots_.end_step();
    needed_ = std::max(needed_, slots_.plan_bytes());
    const uint64_t whole = slots_.whole_extent();
    const bool torn = !backed_.is(whole);
    if (torn && torn_) carry_out(backed_.mend(whole, slots_), true);
    torn_ = torn && !torn_;
    check();
  }
  const CollectiveRegion& slots() const { return slots_; }
  const BackedBytes& backed() const { return backed_; }
  uint64_t needed() const { return needed_; }
  int changes() const { return changes_; }
  uint64_t most() const { return most_; }

 private:
  void carry_out(const BackedBytes::Change& change, bool mending = false) {
    changes_++;
    for (const auto& [begin, end] : change.given_back) {
      for (const auto& [key, range] : held_)
        ASSERT_TRUE(end <= range.first || range.second <= begin) << "bytes of a slot";
      for (const auto& [range, position] : last_)
        if (range.first < end && begin < range.second && !mending) {
          ASSERT_LE(position, change.released);
        }
      for (uint64_t at = begin; at < end; at += kBackedPage) ASSERT_EQ(pages_.erase(at), 1u);
      backed_.given_back(begin, end);
    }
    for (const auto& [begin, end] : change.made) {
      for (uint64_t at = begin; at < end; at += kBackedPage)
        ASSERT_TRUE(pages_.emplace(at, true).second);
      backed_.made(begin, end);
    }
    most_ = std::max(most_, backed_.bytes());
  }
  void check() {
    ASSERT_EQ(backed_.bytes(), pages_.size() * kBackedPage);
    for (const auto& [key, range] : held_)
      for (uint64_t at = range.first; at < range.second; at += kBackedPage)
        ASSERT_TRUE(pages_.contains(at));
    for (uint64_t at = 0; at < backed_.whole(); at += kBackedPage) ASSERT_TRUE(pages_.contains(at));
    ASSERT_LE(backed_.bytes(), std::min(needed_ + needed_ / 32 + kBackedPage, limit_));
  }

  CollectiveRegion slots_;
  const uint64_t limit_;
  BackedBytes backed_{kBackedPage};
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> held_;
  std::map<std::pair<uint64_t, uint64_t>, uint64_t> last_;
  std::map<uint64_t, bool> pages_;
  uint64_t position_ = 0, needed_ = 0, most_ = 0;
  int changes_ = 0;
  bool torn_ = false;
};

// Runs a step that differs for each seed.
void run_step(Part& part, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<uint64_t> held;
  for (int i = 0; i < 200 || !held.empty(); i++) {
    if (i < 200 && held.size() < 6 && (held.empty() || random() % 2)) {
      const uint64_t key = random() % 24;
      if (std::find(held.begin(), held.end(), key) != held.end()) continue;
      ASSERT_TRUE(part.take(key, 1 + key * key % 37));
      held.push_back(key);
    } else {
      const size_t at = random() % held.size();
      part.give_back(held[at]);
      held.erase(held.begin() + static_cast<long>(at));
    }
  }
  part.end_step();
}

TEST(BackedBytes, StayNearWhatIsLiveInStepsThatNobodyKnew) {
  Part part(kAddresses / 2);
  uint64_t reach = 0;
  for (uint64_t seed = 1; seed <= 30; seed++) {
    run_step(part, seed);
    if (HasFatalFailure()) return;
    reach = std::max(reach, part.backed().reach());
  }
  EXPECT_LE(part.most(), part.needed() + part.needed() / 32 + kBackedPage);
  EXPECT_GT(part.changes(), 0);
}

TEST(BackedBytes, AreThePlansAndLeftAloneOnceAStepIsKnown) {
  Part part(kAddresses / 2);
  for (uint64_t seed = 1; seed <= 8; seed++) run_step(part, seed);
  for (int i = 0; i < 4; i++) run_step(part, 8);
  const int changes = part.changes();
  for (int i = 0; i < 10; i++) run_step(part, 8);
  EXPECT_EQ(part.changes(), changes);
  EXPECT_EQ(part.backed().bytes(), part.slots().plan_bytes());
  EXPECT_EQ(part.backed().whole(), part.slots().plan_bytes());
}

// Memory is made in whole units, but never more of it than may exist. Two parts share that limit: a
// part gives back the memory that holds none of its slots, so that the other may have it.
TEST(BackedBytes, KeepToWhatMayExist) {
  constexpr uint64_t kMost = 21 * kBackedPage, kUnit = 8 * kBackedPage;
  CollectiveRegion slots(kAddresses, true);
  slots.set_capacity(kMost, kMost, kAddresses);
  BackedBytes backed(kUnit);
  const auto back = [&](uint64_t key, uint64_t pages, uint64_t most) {
    const uint64_t begin = slots.take(key, pages * kBackedPage, false, key).value().offset;
    const BackedBytes::Change change =
        backed.place(begin, begin + pages * kBackedPage, slots, most);
    for (const auto& [from, to] : change.given_back) backed.given_back(from, to);
    for (const auto& [from, to] : change.made) backed.made(from, to);
  };
  back(1, 3, kMost);
  EXPECT_EQ(backed.bytes(), kUnit);
  back(2, 15, kMost);
  EXPECT_EQ(backed.bytes(), kMost);  // instead of three units
  ASSERT_TRUE(slots.give_back(2, 3).ok());
  const BackedBytes::Change spare = backed.spare(10 * kBackedPage + 1, slots);
  uint64_t spared = 0;
  for (const auto& [from, to] : spare.given_back) spared += to - from;
  EXPECT_EQ(spared, 11 * kBackedPage);
  EXPECT_EQ(spare.released, 3u);
  for (const auto& [from, to] : spare.given_back) backed.given_back(from, to);
  EXPECT_EQ(backed.bytes(), 10 * kBackedPage);
}

// Eight slots of a page take all the bytes that may exist. When every second one is given back, a
// slot of four pages is served, although no gap is that long, because four gaps give its memory.
TEST(BackedBytes, ServeWhatIsInPiecesUpToTheLimit) {
  Part part(8 * kBackedPage);
  for (uint64_t key = 0; key < 8; key++) ASSERT_TRUE(part.take(key, 1));
  EXPECT_FALSE(part.take(8, 1));
  for (uint64_t key = 0; key < 8; key += 2) part.give_back(key);
  ASSERT_TRUE(part.take(9, 4));  // four gaps of one page serve it
  EXPECT_FALSE(part.take(10, 1));
  EXPECT_LE(part.backed().bytes(), 8 * kBackedPage);
}

}  // namespace
}  // namespace fsccl
