// Tests the memory that a rank holds for subscribers: whole copies stay those of their version
// while further ones are published, and nothing exceeds the limit.
#include "publish/history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/crc32c.h"

namespace fsccl::publish {
namespace {

constexpr uint64_t kWords = 3 * kDeltaBlockWords + 77;

class Publishing {
 public:
  explicit Publishing(uint64_t limit) : history(kWords, limit), words(kWords) {
    range_.words = kWords;
  }
  // Publishes a version in which every word of `every` words has changed.
  void publish(uint64_t every = 9, bool records = true) {
    for (uint64_t i = random_() % every; i < kWords; i += every)
      words[i] = static_cast<uint16_t>(words[i] + 1 + random_() % 3);
    history.begin(records);
    for (size_t block = 0; block < range_.blocks(); block++) {
      uint16_t* const at = words.data() + range_.block_begin(block);
      history.keep(block);
      if (records) {
        history.encode(block, at, DeltaForm::coded, scratch_);
        history.add_encoded(block);
      } else {
        history.copy(block, at);
      }
      if (between) between();
    }
    history.end(100 + history.version());
    versions.push_back(words);
    EXPECT_LE(history.held_bytes(), history.limit_bytes());
    EXPECT_LE(history.held_peak_bytes(), history.limit_bytes());
  }
  // Returns whether the rest of a whole copy gives a subscriber the expected words.
  bool rest_is(Sending& sending, Bytes got, const std::vector<uint16_t>& expected) {
    Bytes room;
    for (;;) {
      const ByteView bytes = history.next(sending, room);
      if (bytes.empty()) break;
      got.insert(got.end(), bytes.begin(), bytes.end());
    }
    std::vector<uint16_t> made;
    size_t at = 0;
    for (size_t block = 0; block < range_.blocks(); block++) {
      const size_t bytes = 2 * range_.block_words(block);
      const auto* const from = got.data() + at + kChecksumBytes;
      uint32_t sum = 0;
      std::memcpy(&sum, got.data() + at, sizeof sum);
      EXPECT_EQ(sum, crc32c(from, bytes));
      made.resize(made.size() + bytes / 2);
      std::memcpy(made.data() + made.size() - bytes / 2, from, bytes);
      at += kChecksumBytes + bytes;
    }
    return at == got.size() && made == expected;
  }

  History history;
  std::vector<uint16_t> words;
  std::vector<std::vector<uint16_t>> versions;
  std::function<void()> between;  // called after each block of a version

 private:
  WordRange range_;
  DeltaScratch scratch_;
  std::mt19937_64 random_{7};
};

// A rank without words has records without blocks. No subscriber of this library asks it for one,
// but any holder of a ticket can.
TEST(History, OfNoWordsHasNothingToSend) {
  History history(0, 1 << 20);
  for (int version = 1; version <= 3; version++) {
    history.begin(true);
    history.end(0);
  }
  Sending sending;
  ASSERT_EQ(history.answer({1, 3}, sending), History::Answer::ready);
  Bytes room;
  EXPECT_TRUE(history.next(sending, room).empty());
}

// After a version that was never ended, the words are partly newer than the version before it.
TEST(History, ThereIsNoRecordAfterAVersionThatWasNotEnded) {
  Publishing publishing(uint64_t{1} << 30);
  publishing.publish();
  publishing.publish();
  Sending known;
  EXPECT_EQ(publishing.history.answer({1, 2}, known), History::Answer::ready);
  publishing.history.stop(known);
  publishing.history.begin(true);
  publishing.publish();
  Sending sending;
  ASSERT_EQ(publishing.history.answer({2, 3}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 0u) << "it is a whole copy";
  publishing.history.stop(sending);
}

// Nobody can have a version that was skipped, and the number of the next one is what it would be.
TEST(History, ASkippedVersionCountsAndIsGone) {
  Publishing ranks(100 * kWords);
  ranks.publish();
  ranks.history.begin(true);
  ranks.history.keep(0);
  ranks.history.skip();
  ranks.versions.push_back({});
  EXPECT_EQ(ranks.history.version(), 2u);
  Sending sending;
  EXPECT_EQ(ranks.history.answer({0, 2}, sending), History::Answer::later);
  EXPECT_EQ(ranks.history.answer({0, 1}, sending), History::Answer::gone);
  ranks.publish();
  EXPECT_EQ(ranks.history.answer({1, 2}, sending), History::Answer::gone);
  ASSERT_EQ(ranks.history.answer({1, 3}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 0u);
  EXPECT_TRUE(ranks.rest_is(sending, {}, ranks.versions[2]));
}

// Records of a model that hardly changes have little in their blocks. The memory that blocks take
// beside their bytes counts, too.
TEST(History, BlocksOfNothingCount) {
  Publishing ranks(1'000'000);
  for (int i = 0; i < 20; i++) ranks.publish(kWords);
  EXPECT_GE(ranks.history.held_bytes(),
            19 * (ranks.history.newest_record_bytes() + 4 * sizeof(Bytes)));
  EXPECT_LT(ranks.history.newest_record_bytes(), 4 * 100);
}

TEST(History, AWholeCopyIsOfItsVersionWhateverIsPublishedMeanwhile) {
  Publishing ranks(2 * kWords + 1000);
  ranks.publish(9, false);
  Sending slow, slower;
  ASSERT_EQ(ranks.history.answer({0, 1}, slow), History::Answer::ready);
  EXPECT_EQ(slow.head().bytes, whole_bytes(kWords));
  EXPECT_EQ(ranks.history.held_bytes(), 0u);  // a whole copy costs nothing before the next version
  Bytes room;
  const ByteView first = ranks.history.next(slow, room);
  const Bytes begun(first.begin(), first.end());
  for (int i = 0; i < 3; i++) ranks.publish();
  EXPECT_GT(ranks.history.held_bytes(), 2 * kWords / 2);
  ASSERT_EQ(ranks.history.answer({0, 4}, slower), History::Answer::ready);
  EXPECT_TRUE(ranks.rest_is(slow, begun, ranks.versions[0]));
  EXPECT_FALSE(slow.active());
  ranks.publish();
  EXPECT_TRUE(ranks.rest_is(slower, {}, ranks.versions[3]));
}

TEST(History, AWholeCopyMayBeReadBetweenTheBlocksOfAVersion) {
  Publishing ranks(2 * kWords + 1000);
  ranks.publish();
  Sending sending;
  ASSERT_EQ(ranks.history.answer({0, 1}, sending), History::Answer::ready);
  Bytes got, room;
  ranks.between = [&] {
    const ByteView bytes = ranks.history.next(sending, room);
    got.insert(got.end(), bytes.begin(), bytes.end());
  };
  ranks.publish();
  EXPECT_TRUE(ranks.rest_is(sending, got, ranks.versions[0]));
}

TEST(History, AVersionThatIsBeingMadeIsNotThere) {
  Publishing ranks(2 * kWords);
  ranks.publish();
  Sending late, early;
  ranks.between = [&] {
    // Some blocks are of the new version now, and others of the one before.
    EXPECT_EQ(ranks.history.answer({0, 1}, late), History::Answer::later);
    EXPECT_EQ(ranks.history.answer({0, 2}, early), History::Answer::later);
  };
  ranks.publish();
  ranks.between = nullptr;
  EXPECT_EQ(ranks.history.answer({0, 1}, late), History::Answer::gone);
  EXPECT_EQ(ranks.history.answer({0, 2}, early), History::Answer::ready);
  EXPECT_TRUE(ranks.rest_is(early, {}, ranks.versions[1]));
}

TEST(History, RecordsGoWhenTheLimitIsReachedTheOldestFirst) {
  Publishing ranks(200'000);
  for (int i = 0; i < 12; i++) ranks.publish();
  Sending sending;
  EXPECT_EQ(ranks.history.answer({11, 12}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 11u);
  EXPECT_EQ(ranks.history.answer({1, 2}, sending), History::Answer::gone);
  ranks.history.stop(sending);
}

TEST(History, AChainThatIsLongerThanTheWordsIsAWholeCopy) {
  Publishing ranks(100 * kWords);
  for (int i = 0; i < 40; i++) ranks.publish(2);
  Sending sending;
  ASSERT_EQ(ranks.history.answer({1, 40}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 0u);
  ranks.history.stop(sending);
}

// The oldest whole copy is completed although many more are begun and never read.
TEST(History, TheOldestWholeCopyIsNeverGivenUp) {
  Publishing ranks(2 * kWords);
  ranks.publish();
  Sending oldest;
  ASSERT_EQ(ranks.history.answer({0, 1}, oldest), History::Answer::ready);
  std::vector<Sending> others(5);
  for (Sending& other : others) {
    ranks.publish();
    ASSERT_EQ(ranks.history.answer({0, ranks.history.version()}, other), History::Answer::ready);
  }
  ranks.publish();
  EXPECT_GT(ranks.history.given_up(), 0u);
  EXPECT_TRUE(others.front().cut());
  EXPECT_FALSE(others.front().active());
  EXPECT_FALSE(oldest.cut());
  EXPECT_TRUE(ranks.rest_is(oldest, {}, ranks.versions[0]));
  for (Sending& other : others) ranks.history.stop(other);
}

TEST(History, WhatIsBeingSentCountsUntilItIsSent) {
  Publishing ranks(60'000);
  ranks.publish();
  ranks.publish();
  Sending sending;
  ASSERT_EQ(ranks.history.answer({1, 2}, sending), History::Answer::ready);
  for (int i = 0; i < 12; i++) ranks.publish();  // the record that is being sent has to go
  EXPECT_TRUE(sending.cut());
}

TEST(History, ALimitOfNothingKeepsNothing) {
  Publishing ranks(100);
  ranks.publish();
  Sending sending;
  ASSERT_EQ(ranks.history.answer({0, 1}, sending), History::Answer::ready);
  ranks.publish();
  EXPECT_TRUE(sending.cut());
  EXPECT_EQ(ranks.history.held_bytes(), 0u);
  ASSERT_EQ(ranks.history.answer({0, 2}, sending), History::Answer::ready);
  EXPECT_TRUE(ranks.rest_is(sending, {}, ranks.versions[1]));
}

TEST(History, WithoutRecordsTheNextSubscriberGetsAWholeCopy) {
  Publishing ranks(100 * kWords);
  ranks.publish();
  ranks.publish(9, false);
  ranks.publish();
  Sending sending;
  ASSERT_EQ(ranks.history.answer({1, 3}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 0u);
  ranks.history.stop(sending);
  ASSERT_EQ(ranks.history.answer({2, 3}, sending), History::Answer::ready);
  EXPECT_EQ(sending.head().base, 2u);
  ranks.history.stop(sending);
}

}  // namespace
}  // namespace fsccl::publish
