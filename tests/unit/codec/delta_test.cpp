// Tests the delta codec: all words come back exactly, sizes are compared with the formula and the
// entropy, and stale or damaged input is found.
#include "codec/delta.h"

#include <gtest/gtest.h>

#include <fmt/core.h>

#include "codec/nibbles.h"
#include "kernels/crc32c.h"
#include "tests/unit/codec/words.h"

namespace fsccl {
namespace {

struct Coded {
  std::vector<uint8_t> bytes;
  WordList previous;  // the encoder's copy of the words, after the encoding
  DeltaKind kind{};
};

Coded encode(const WordList& words, WordList previous, DeltaForm form) {
  static DeltaScratch scratch;
  Coded made{std::vector<uint8_t>(delta_block_bound(words.size())), std::move(previous), {}};
  const DeltaWritten written = encode_delta(words.data(), made.previous.data(), words.size(), form,
                                            made.bytes.data(), scratch);
  EXPECT_LE(written.bytes, made.bytes.size());
  EXPECT_EQ(written.sum, crc32c(words.data(), 2 * words.size()));
  made.bytes.resize(written.bytes);
  made.kind = written.kind;
  return made;
}

DeltaResult decode(std::vector<uint8_t> bytes, WordList* words) {
  static DeltaScratch scratch;
  const DeltaRead read =
      decode_delta(bytes.data(), bytes.size(), words->data(), words->size(), scratch);
  EXPECT_TRUE(read.result != DeltaResult::good || read.bytes == bytes.size());
  return read.result;
}

class Delta : public testing::TestWithParam<DeltaForm> {};

TEST_P(Delta, WordsOfAllKindsComeBack) {
  Random random(1);
  for (const size_t count :
       {size_t{1}, size_t{63}, size_t{64}, size_t{5000}, kDeltaBlockWords - 1, kDeltaBlockWords})
    for (const int kind : {0, 1, 2, 3}) {
      const WordList previous =
          any_words(count, random);  // NaNs, infinities and zeros are among them
      WordList words = kind == 0 ? any_words(count, random) : previous;
      if (kind == 1)
        for (uint16_t& word : words) word = static_cast<uint16_t>(word + random() % 7 - 3);
      if (kind == 2) words[random() % count] ^= 0x8000;
      Coded coded = encode(words, previous, GetParam());
      EXPECT_EQ(coded.previous, words);
      EXPECT_TRUE(kind != 0 || count == 1 || coded.kind == DeltaKind::plain);
      EXPECT_TRUE(kind != 3 ||
                  (coded.kind == DeltaKind::same && coded.bytes.size() == kDeltaHeaderBytes));
      WordList back = previous;
      ASSERT_EQ(decode(coded.bytes, &back), DeltaResult::good) << count << " " << kind;
      ASSERT_EQ(back, words) << count << " " << kind;
    }
}

TEST_P(Delta, HundredsOfStepsStayExact) {
  Training training(20'000);
  WordList owner(20'000), receiver(20'000);
  for (int step = 0; step < 200; step++) {
    training.step(step % 10 == 3 ? 0.f : step % 50 == 7 ? 1.f : 1e-4f);
    if (step == 60) training.master[7] = NAN;
    if (step == 61) training.master[7] = 0.1f;
    const WordList words = training.words();
    Coded coded = encode(words, owner, GetParam());
    ASSERT_EQ(decode(coded.bytes, &receiver), DeltaResult::good);
    ASSERT_EQ(receiver, words);
    owner = coded.previous;
  }
}

TEST_P(Delta, AStaleCopyIsFound) {
  Training training(10'000);
  const WordList before = training.words();
  training.step(1e-4f);
  Coded coded = encode(training.words(), before, GetParam());
  for (const size_t at : {size_t{0}, size_t{77}, size_t{9'999}}) {
    WordList stale = before;
    stale[at] ^= 1;
    EXPECT_EQ(decode(coded.bytes, &stale), DeltaResult::stale);
  }
  Coded same = encode(before, before, GetParam());
  WordList stale = before;
  stale[5] ^= 0x4000;
  EXPECT_EQ(decode(same.bytes, &stale), DeltaResult::stale);
}

TEST_P(Delta, DamageIsNeverTakenForGood) {
  Training training(9'000);
  const WordList before = training.words();
  training.step(3e-4f);
  const WordList words = training.words();
  const Coded coded = encode(words, before, GetParam());
  Random random(17);
  for (int i = 0; i < 3000; i++) {
    std::vector<uint8_t> wrong = coded.bytes;
    if (i % 5 == 0) wrong.resize(random() % wrong.size());
    if (!wrong.empty()) {
      uint8_t& byte = wrong[random() % std::min<size_t>(wrong.size(), i % 2 ? 64 : wrong.size())];
      byte = static_cast<uint8_t>(byte ^ 1u << random() % 8);
    }
    WordList back = before;
    ASSERT_TRUE(decode(wrong, &back) != DeltaResult::good || back == words);
  }
}

INSTANTIATE_TEST_SUITE_P(Forms, Delta, testing::Values(DeltaForm::nibbles, DeltaForm::coded));

TEST(DeltaSizes, NibblesAreTheFormula) {
  Training training(kDeltaBlockWords);
  for (const float rate : {1e-3f, 3e-4f, 3e-5f}) {
    const WordList before = training.words();
    training.step(rate);
    const WordList words = training.words();
    size_t bytes = 0, longs = 0;
    for (size_t i = 0; i < words.size(); i++) {
      const unsigned z = folded_difference(words[i], before[i]);
      bytes += z >= 15;
      longs += z >= 15 + 255;
    }
    EXPECT_EQ(encode(words, before, DeltaForm::nibbles).bytes.size(),
              kDeltaHeaderBytes + nibble_bytes(words.size()) + bytes + 2 * longs);
  }
}

TEST(DeltaSizes, TheCodedFormIsNearTheEntropy) {
  Training training(kDeltaBlockWords);
  for (const float rate : {1e-3f, 3e-4f, 1e-4f, 3e-5f, 1e-5f, 3e-6f}) {
    const WordList before = training.words();
    training.step(rate);
    const WordList words = training.words();
    const double least = entropy_of(words, before) / 8 * static_cast<double>(words.size());
    const auto made = static_cast<double>(encode(words, before, DeltaForm::coded).bytes.size());
    RecordProperty(fmt::format("ratio at {}", rate).c_str(), fmt::format("{:.3f}", made / least));
    EXPECT_LE(made, 1.15 * least) << rate << ": " << 8 * least / static_cast<double>(words.size())
                                  << " bits a word";
  }
}

TEST(DeltaSizes, AreTheSameBytesOnEveryTarget) {
  Training training(30'000);
  const WordList before = training.words();
  training.step(3e-4f);
  const WordList words = training.words();
  for (const DeltaForm form : {DeltaForm::nibbles, DeltaForm::coded}) {
    const Coded expected = encode(words, before, form);
    on_each_target([&](int64_t target) {
      EXPECT_EQ(encode(words, before, form).bytes, expected.bytes) << hwy::TargetName(target);
    });
  }
}

// A sender that stops sends a mark in place of a block, and the receiver does not take the mark for
// a block.
TEST(DeltaBlocks, WhatIsNoBlockIsFound) {
  std::vector<uint8_t> bytes(kDeltaHeaderBytes + 100);
  write_no_delta(bytes.data());
  std::vector<uint16_t> words(1000, 7);
  DeltaScratch scratch;
  const DeltaRead read = decode_delta(bytes.data(), bytes.size(), words.data(), 1000, scratch);
  EXPECT_EQ(read.result, DeltaResult::damaged);
  EXPECT_EQ(read.bytes, 0u);
}

}  // namespace
}  // namespace fsccl
