// Tests nibbles: every pair of words comes back, and on every instruction set the bytes are those
// of the definition.
#include "codec/nibbles.h"

#include <gtest/gtest.h>

#include "tests/unit/codec/words.h"

namespace fsccl {
namespace {

struct Split {
  std::vector<uint8_t> nibbles, bytes;
  WordList longs;
  bool operator==(const Split&) const = default;
};

Split split(const WordList& words, const WordList& previous) {
  Split made{std::vector<uint8_t>(nibble_bytes(words.size())), std::vector<uint8_t>(words.size()),
             WordList(words.size())};
  const Escapes found = split_nibbles(words.data(), previous.data(), words.size(),
                                      made.nibbles.data(), made.bytes.data(), made.longs.data());
  made.bytes.resize(found.bytes);
  made.longs.resize(found.longs);
  EXPECT_EQ(found.same, words == previous);
  return made;
}

bool join(const Split& from, WordList* words) {
  return join_nibbles(words->data(), words->size(), from.nibbles.data(), from.bytes.data(),
                      reinterpret_cast<const uint8_t*>(from.longs.data()),
                      {from.bytes.size(), from.longs.size(), false});
}

// Codes by the definition of nibbles.h, a word at a time.
Split by_definition(const WordList& words, const WordList& previous) {
  Split made{std::vector<uint8_t>(nibble_bytes(words.size())), {}, {}};
  for (size_t i = 0; i < words.size(); i++) {
    const uint16_t z = folded_difference(words[i], previous[i]);
    const unsigned nibble = z < 15 ? z : 15;
    const size_t in_group = i % 64;
    uint8_t& byte = made.nibbles[i / 64 * 32 + in_group % 32];
    byte = static_cast<uint8_t>(byte | nibble << (in_group < 32 ? 0 : 4));
    if (nibble < 15) continue;
    made.bytes.push_back(static_cast<uint8_t>(z - 15 < 255 ? z - 15 : 255));
    if (z - 15 >= 255) made.longs.push_back(z);
  }
  return made;
}

TEST(Nibbles, EveryWordComesBackFromEveryDistance) {
  on_each_target([](int64_t target) {
    WordList all(65536);
    for (size_t i = 0; i < all.size(); i++) all[i] = static_cast<uint16_t>(i);
    for (const uint32_t shift : {0u, 1u, 7u, 8u, 134u, 135u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      WordList previous(all.size());
      for (size_t i = 0; i < all.size(); i++) previous[i] = static_cast<uint16_t>(i + shift);
      WordList words = previous;
      ASSERT_TRUE(join(split(all, previous), &words)) << hwy::TargetName(target);
      ASSERT_EQ(words, all) << hwy::TargetName(target) << " " << shift;
    }
  });
}

TEST(Nibbles, AreTheDefinitionAtEverySizeOnEveryTarget) {
  Random random(3);
  for (const size_t count : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 1000, 4097}) {
    const WordList previous = any_words(count, random);
    WordList words = previous;
    for (uint16_t& word : words)
      if (random() % 3) word = static_cast<uint16_t>(word + random() % (random() % 5 ? 12 : 4000));
    const Split expected = by_definition(words, previous);
    on_each_target([&](int64_t target) {
      EXPECT_EQ(split(words, previous), expected) << hwy::TargetName(target) << " " << count;
      WordList back = previous;
      EXPECT_TRUE(join(expected, &back));
      EXPECT_EQ(back, words) << hwy::TargetName(target) << " " << count;
    });
  }
}

TEST(Nibbles, ZeroesOfBothSignsAreNeighbours) {
  EXPECT_EQ(folded_difference(0x0000, 0x8000), 2);
  const WordList plus(64, 0x0000), minus(64, 0x8000);
  EXPECT_EQ(split(plus, minus).nibbles, std::vector<uint8_t>(32, 0x22));
}

TEST(Nibbles, CountsOfEscapesThatAreWrongAreFound) {
  Random random(5);
  const WordList previous = any_words(300, random), words = any_words(300, random);
  const Split right = split(words, previous);
  WordList back = previous;
  Split wrong = right;
  wrong.bytes.pop_back();
  EXPECT_FALSE(join(wrong, &back));
  wrong = right;
  wrong.bytes.push_back(1);
  EXPECT_FALSE(join(wrong, &(back = previous)));
  wrong = right;
  wrong.longs.pop_back();
  EXPECT_FALSE(join(wrong, &(back = previous)));
  wrong = right;
  wrong.longs.push_back(1);
  EXPECT_FALSE(join(wrong, &(back = previous)));
  EXPECT_TRUE(join(right, &(back = previous)));
}

}  // namespace
}  // namespace fsccl
