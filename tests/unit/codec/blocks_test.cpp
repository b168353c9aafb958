// Tests block codecs: errors within the stated bound for values of all kinds, blocks that are
// carried exactly, sizes, damaged input, equal bytes on every instruction set, and sums with
// feedback.
#include "codec/blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/unit/codec/words.h"

namespace fsccl {
namespace {

using Floats = std::vector<float>;

float half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude = exponent == 31 ? (mantissa ? NAN : INFINITY)
                           : exponent     ? std::ldexp(1024 + mantissa, exponent - 25)
                                          : std::ldexp(mantissa, -24);
  return static_cast<float>(bits & 0x8000 ? -magnitude : magnitude);
}

// Elements of a dtype in memory, and the values that they stand for.
struct Stored {
  fsccl_dtype_t dtype{};
  std::vector<uint8_t> bytes;
  Stored(fsccl_dtype_t type, size_t count) : dtype(type), bytes(count * dtype_size(type)) {}
  size_t count() const { return bytes.size() / dtype_size(dtype); }
  uint32_t bits(size_t i) const {
    uint32_t found = 0;
    std::memcpy(&found, &bytes[i * dtype_size(dtype)], dtype_size(dtype));
    return found;
  }
  void set_bits(size_t i, uint32_t bits) {
    std::memcpy(&bytes[i * dtype_size(dtype)], &bits, dtype_size(dtype));
  }
  void set(size_t i, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (dtype == FSCCL_BFLOAT16) bits = bfloat16_of(value);
    if (dtype == FSCCL_FLOAT16) {  // a simple conversion is exact enough for these tests
      const double scaled = std::fabs(static_cast<double>(value));
      uint16_t best = 0;
      if (scaled >= 65504) {
        best = 0x7bff;
      } else if (scaled > 0) {
        const int exponent = std::max(-14, static_cast<int>(std::floor(std::log2(scaled))));
        const auto units = static_cast<uint32_t>(std::lround(std::ldexp(scaled, 10 - exponent)));
        best = static_cast<uint16_t>(units + static_cast<uint32_t>(exponent + 14) * 1024);
      }
      bits = best | (value < 0 ? 0x8000u : 0u);
    }
    set_bits(i, bits);
  }
  float value(size_t i) const {
    const uint32_t found = bits(i);
    if (dtype == FSCCL_FLOAT16) return half_value(static_cast<uint16_t>(found));
    const uint32_t wide = dtype == FSCCL_BFLOAT16 ? found << 16 : found;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

struct Encoded {
  std::vector<uint8_t> bytes;
  BlocksWritten written;
};

Encoded encode(const Stored& from, const BlockForm& form, BlockAudit audit = {}) {
  audit.room = from.bytes.size();
  Encoded made;
  made.bytes.resize(form.chunk_bytes(from.count()) + audit.room);
  made.written =
      encode_blocks(from.bytes.data(), from.dtype, from.count(), form, audit, made.bytes.data());
  EXPECT_LE(made.written.bytes, made.bytes.size());
  made.bytes.resize(made.written.bytes);
  return made;
}

Stored decode(const Encoded& coded, const Stored& like, const BlockForm& form) {
  Stored back(like.dtype, like.count());
  EXPECT_EQ(decode_blocks(coded.bytes.data(), coded.bytes.size(), back.bytes.data(), back.dtype,
                          back.count(), form),
            coded.bytes.size());
  return back;
}

// Expects that the error of each block is within the bound, and that blocks with elements that are
// not finite come back unchanged.
void expect_within_bound(const Stored& words, const Stored& back, const BlockForm& form) {
  const double bound = block_bound(form, words.dtype);
  for (size_t at = 0; at < words.count(); at += form.block) {
    const size_t end = std::min(words.count(), at + form.block);
    double largest = 0, error = 0;
    bool same = true, finite = true;
    for (size_t i = at; i < end; i++) {
      const double before = static_cast<double>(words.value(i));
      finite = finite && std::isfinite(before);
      largest = std::max(largest, std::fabs(before));
      error = std::max(error, std::fabs(before - static_cast<double>(back.value(i))));
      same = same && words.bits(i) == back.bits(i);
    }
    ASSERT_TRUE(same || (finite && error <= bound * largest))
        << "block at " << at << " of " << words.count() << ": " << error / largest << " of "
        << bound;
  }
}

class Blocks : public testing::TestWithParam<std::tuple<BlockKind, fsccl_dtype_t>> {
 protected:
  BlockForm form(uint32_t block = 0) const {
    const BlockKind kind = std::get<0>(GetParam());
    return {kind, block ? block : kind == BlockKind::mxfp8 ? 32u : 128u};
  }
  fsccl_dtype_t dtype() const { return std::get<1>(GetParam()); }
};

TEST_P(Blocks, KeepTheirBound) {
  Random random(1);
  std::normal_distribution<float> normal(0, 1);
  for (const uint32_t block : {32u, 128u, 1024u})
    for (const size_t count :
         {size_t{1}, size_t{15}, size_t{16}, size_t{33}, size_t{1000}, size_t{4097}, kBlocksMost})
      for (int exponent = -14; exponent <= 14; exponent += 7) {
        Stored words(dtype(), count);
        for (size_t i = 0; i < count; i++) {
          float value = std::ldexp(normal(random), exponent);
          if (random() % 50 == 0) value *= 30;  // outliers
          if (random() % 7 == 0) value = random() % 2 ? 0 : -0.0f;
          words.set(i, value);
        }
        const Encoded coded = encode(words, form(block), {.every = 1});
        EXPECT_EQ(coded.written.beyond, 0u);
        EXPECT_EQ(coded.written.blocks, form(block).blocks(count));
        if (dtype() != FSCCL_FLOAT16) {
          EXPECT_EQ(coded.written.exact, 0u);
          EXPECT_EQ(coded.bytes.size(), form(block).chunk_bytes(count));
        }
        EXPECT_LE(coded.written.largest, block_bound(form(), dtype()));
        expect_within_bound(words, decode(coded, words, form(block)), form(block));
      }
}

TEST_P(Blocks, AllWordsKeepTheirBoundOrAreExact) {
  Random random(2);
  for (int round = 0; round < 40; round++) {
    Stored words(dtype(), 1 + random() % 3000);
    for (size_t i = 0; i < words.count(); i++) {
      auto bits = static_cast<uint32_t>(random());
      if (round % 2) bits &= ~0x40004000u;  // makes the values small
      words.set_bits(i, bits);
    }
    if (round % 3 == 0)
      for (size_t i = 0; i < words.count(); i++) words.set_bits(i, words.bits(0));
    const Encoded coded = encode(words, form(), {.every = 3});
    EXPECT_EQ(coded.written.beyond, 0u);
    expect_within_bound(words, decode(coded, words, form()), form());
  }
}

// Numbers of fp16 below 2^-14 have fewer bits, and a decoded one is rounded to one of these.
TEST_P(Blocks, TinyNumbersKeepTheirBoundOrAreExact) {
  Random random(3);
  for (int exponent = -24; exponent <= -8; exponent++)
    for (int round = 0; round < 50; round++) {
      Stored words(dtype(), 2 * form().block);
      for (size_t i = 0; i < words.count(); i++)
        words.set(i, std::ldexp(static_cast<float>(random() % 2048) / 1024 - 1, exponent));
      const Encoded coded = encode(words, form(), {.every = 1});
      EXPECT_EQ(coded.written.beyond, 0u);
      expect_within_bound(words, decode(coded, words, form()), form());
    }
}

TEST_P(Blocks, WhatIsNotFiniteGoesExactly) {
  Stored words(dtype(), 8 * form().block);
  for (size_t i = 0; i < words.count(); i++)
    words.set(i, 0.01f * static_cast<float>(i % 17) - 0.1f);
  const uint32_t infinite = dtype() == FSCCL_FLOAT16    ? 0xfc00
                            : dtype() == FSCCL_BFLOAT16 ? 0xff80
                                                        : 0xff800000;
  words.set_bits(2 * form().block + 5, infinite);
  words.set_bits(4 * form().block, infinite | 1);
  const Encoded coded = encode(words, form());
  EXPECT_EQ(coded.written.exact, 2u);
  EXPECT_EQ(coded.bytes.size(),
            form().chunk_bytes(words.count()) + 2 * form().block * dtype_size(dtype()));
  const Stored back = decode(coded, words, form());
  expect_within_bound(words, back, form());
  EXPECT_EQ(back.bits(2 * form().block + 5), infinite);
}

TEST_P(Blocks, WhoseErrorIsTooLargeGoExactly) {
  Stored words(dtype(), 64 * form().block);
  Random random(3);
  std::normal_distribution<float> normal(0, 1);
  for (size_t i = 0; i < words.count(); i++) words.set(i, normal(random));
  for (size_t i = 0; i < form().block; i++)
    words.set(i, i % 2 ? 2.0f : -2.0f);  // the first block is coded without an error
  const double least = 1e-3 * block_bound(form(), dtype());
  const Encoded coded = encode(words, form(), {.most_error = least});
  EXPECT_EQ(coded.written.audited, 64u);
  EXPECT_EQ(coded.written.exact, 63u);
  EXPECT_LE(coded.written.largest, least);
  EXPECT_EQ(decode(coded, words, form()).bytes, words.bytes);
  std::vector<uint8_t> out(form().chunk_bytes(words.count()) +
                           3 * form().block * dtype_size(dtype()));
  EXPECT_EQ(encode_blocks(words.bytes.data(), dtype(), words.count(), form(),
                          {.most_error = least, .room = 3 * form().block * dtype_size(dtype())},
                          out.data())
                .bytes,
            0u);
}

TEST_P(Blocks, SamplesAreAudited) {
  Stored words(dtype(), 100 * form().block);
  for (size_t i = 0; i < words.count(); i++)
    words.set(i, 0.01f * static_cast<float>(i % 23) - 0.1f);
  uint32_t audited = 0;
  for (uint64_t phase = 0; phase < 10; phase++)
    audited += encode(words, form(), {.every = 10, .phase = phase}).written.audited;
  EXPECT_EQ(audited, 100u);
}

TEST_P(Blocks, DamageIsFound) {
  Stored words(dtype(), 3000);
  for (size_t i = 0; i < words.count(); i++)
    words.set(i, 0.01f * static_cast<float>(i % 29) - 0.1f);
  words.set(77, INFINITY);
  const Encoded coded = encode(words, form());
  Random random(4);
  for (int i = 0; i < 2000; i++) {
    std::vector<uint8_t> wrong = coded.bytes;
    if (i % 5 == 0) wrong.resize(random() % wrong.size());
    if (wrong.empty()) continue;
    uint8_t& byte = wrong[random() % std::min<size_t>(wrong.size(), i % 2 ? 64 : wrong.size())];
    byte = static_cast<uint8_t>(byte ^ 1u << random() % 8);
    Stored back(dtype(), words.count());
    ASSERT_EQ(
        decode_blocks(wrong.data(), wrong.size(), back.bytes.data(), dtype(), back.count(), form()),
        0u);
  }
}

TEST_P(Blocks, AreTheSameOnEveryTarget) {
  Random random(5);
  Stored words(dtype(), 20'011);
  std::normal_distribution<float> normal(0, 0.02f);
  for (size_t i = 0; i < words.count(); i++) words.set(i, normal(random));
  words.set_bits(999, 0xffffffff);
  const Encoded expected = encode(words, form(), {.every = 1});
  const Stored back = decode(expected, words, form());
  on_each_target([&](int64_t target) {
    const Encoded coded = encode(words, form(), {.every = 1});
    EXPECT_EQ(coded.bytes, expected.bytes) << hwy::TargetName(target);
    EXPECT_EQ(coded.written.largest, expected.written.largest);
    EXPECT_EQ(decode(coded, words, form()).bytes, back.bytes) << hwy::TargetName(target);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, Blocks,
    testing::Combine(testing::Values(BlockKind::int8, BlockKind::fp8, BlockKind::mxfp8),
                     testing::Values(FSCCL_BFLOAT16, FSCCL_FLOAT16, FSCCL_FLOAT32)));

// The codes of E4M3 are compared with the definition.
TEST(BlockCodes, E4m3IsTheNearestOfAll) {
  std::vector<double> values;
  for (int code = 0; code < 0x7f; code++)
    values.push_back(code < 8 ? std::ldexp(code, -9) : std::ldexp(8 + code % 8, code / 8 - 10));
  EXPECT_EQ(values.back(), 448);
  Random random(6);
  const BlockForm form{BlockKind::fp8, 32};
  for (int round = 0; round < 3000; round++) {
    Stored words(FSCCL_FLOAT32, 32);
    words.set(0, 448);  // so that the scale is 1
    for (size_t i = 1; i < 32; i++)
      words.set(i, static_cast<float>(std::ldexp(static_cast<double>(random() % 3585) - 1792,
                                                 -11 - static_cast<int>(random() % 12) + 9)));
    const Stored back = decode(encode(words, form), words, form);
    for (size_t i = 0; i < 32; i++) {
      double nearest = 1e9;
      for (const double value : values)
        nearest =
            std::min(nearest, std::fabs(value - std::fabs(static_cast<double>(words.value(i)))));
      ASSERT_EQ(std::fabs(static_cast<double>(words.value(i)) - static_cast<double>(back.value(i))),
                nearest)
          << words.value(i) << " " << back.value(i);
    }
  }
}

class Sums : public testing::TestWithParam<BlockKind> {
 protected:
  BlockForm form() const { return {GetParam(), 128}; }
};

Floats decoded(const std::vector<uint8_t>& chunk, size_t count, const BlockForm& form) {
  Floats made(count);
  EXPECT_EQ(add_sums(chunk.data(), chunk.size(), made.data(), count, form, false), chunk.size());
  return made;
}

TEST_P(Sums, OfCodedPartsAreNear) {
  Random random(7);
  std::normal_distribution<float> normal(0, 1e-3f);
  for (const size_t count : {size_t{1}, size_t{31}, size_t{129}, size_t{5000}, kBlocksMost}) {
    Floats first(count), second(count);
    for (size_t i = 0; i < count; i++) first[i] = normal(random), second[i] = normal(random);
    std::vector<uint8_t> one(form().chunk_bytes(count)), other(one.size());
    encode_sums(first.data(), FSCCL_FLOAT32, count, form(), nullptr, one.data());
    encode_sums(second.data(), FSCCL_FLOAT32, count, form(), nullptr, other.data());
    Floats sums = decoded(one, count, form());
    EXPECT_EQ(add_sums(other.data(), other.size(), sums.data(), count, form(), true), other.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < count; i++) {
      error += std::pow(static_cast<double>(sums[i]) - static_cast<double>(first[i]) -
                            static_cast<double>(second[i]),
                        2);
      size += std::pow(static_cast<double>(first[i]) + static_cast<double>(second[i]), 2);
    }
    EXPECT_LE(error, size * (form().kind == BlockKind::int4 ? 0.1 : 1e-3)) << count;
  }
}

// Most elements of the gradients lie below half a step of the codec. Without feedback they are
// lost. With feedback their sum over the training steps is right to one step of the codec.
TEST_P(Sums, FeedbackKeepsWhatLiesBelowHalfAStep) {
  const size_t count = 256;
  const float small = form().kind == BlockKind::int4 ? 1e-3f : 1e-4f;
  Floats gradient(count, small), feedback(count), with(count), without(count);
  // The large elements make the step of a block large. (BF16 blocks have no common step, so there
  // elements are lost only in a sum that has grown.)
  gradient[0] = 1, gradient[200] = -1;
  constexpr int kSteps = 2000;
  std::vector<uint8_t> chunk(form().chunk_bytes(count));
  for (int step = 0; step < kSteps; step++) {
    encode_sums(gradient.data(), FSCCL_FLOAT32, count, form(), nullptr, chunk.data());
    ASSERT_TRUE(add_sums(chunk.data(), chunk.size(), without.data(), count, form(), true));
    encode_sums(gradient.data(), FSCCL_FLOAT32, count, form(), feedback.data(), chunk.data());
    ASSERT_TRUE(add_sums(chunk.data(), chunk.size(), with.data(), count, form(), true));
  }
  double lost = 0, kept = 0;
  for (size_t i = 1; i < 128; i++) {
    const double whole = static_cast<double>(small) * kSteps;
    lost = std::max(lost, std::fabs(static_cast<double>(without[i]) - whole) / whole);
    kept = std::max(kept, std::fabs(static_cast<double>(with[i]) - whole) / whole);
  }
  if (form().kind == BlockKind::int8) {
    EXPECT_EQ(without[1], 0.0f);
  }
  if (form().kind != BlockKind::bf16) {
    EXPECT_GT(lost, 0.2);
  }
  EXPECT_LT(kept, 0.06);
}

TEST_P(Sums, WhatIsNotFiniteIsToldAndLeavesTheFeedback) {
  const size_t count = 300;
  Floats gradient(count, 0.3f), feedback(count, 0.125f);
  gradient[5] = NAN;
  gradient[260] = INFINITY;
  std::vector<uint8_t> chunk(form().chunk_bytes(count));
  encode_sums(gradient.data(), FSCCL_FLOAT32, count, form(), feedback.data(), chunk.data());
  const Floats made = decoded(chunk, count, form());
  EXPECT_TRUE(std::isnan(made[5]));
  EXPECT_FALSE(std::isfinite(made[260]));
  EXPECT_NEAR(made[130], 0.425f, 0.05f);
  EXPECT_EQ(feedback[5], 0.125f);
  EXPECT_EQ(feedback[0], 0.125f);
  EXPECT_TRUE(std::isfinite(feedback[130]));
}

TEST_P(Sums, AreTheSameOnEveryTarget) {
  Random random(8);
  std::normal_distribution<float> normal(0, 1);
  const size_t count = 10'007;
  Floats gradient(count), before(count);
  for (size_t i = 0; i < count; i++)
    gradient[i] = normal(random), before[i] = 0.01f * normal(random);
  gradient[3000] = NAN;
  std::vector<uint8_t> expected(form().chunk_bytes(count));
  Floats feedback = before;
  encode_sums(gradient.data(), FSCCL_FLOAT32, count, form(), feedback.data(), expected.data());
  Floats sums = before;
  ASSERT_TRUE(add_sums(expected.data(), expected.size(), sums.data(), count, form(), true));
  on_each_target([&](int64_t target) {
    std::vector<uint8_t> chunk(expected.size());
    Floats left = before, made = before;
    encode_sums(gradient.data(), FSCCL_FLOAT32, count, form(), left.data(), chunk.data());
    EXPECT_EQ(chunk, expected) << hwy::TargetName(target);
    EXPECT_EQ(std::memcmp(left.data(), feedback.data(), count * sizeof(float)), 0);
    ASSERT_TRUE(add_sums(chunk.data(), chunk.size(), made.data(), count, form(), true));
    for (size_t i = 0; i < count; i++)
      ASSERT_TRUE(made[i] == sums[i] || (std::isnan(made[i]) && std::isnan(sums[i]))) << i;
  });
}

TEST_P(Sums, DamageIsFound) {
  Floats gradient(1000, 0.5f), sums(1000, 1.0f);
  std::vector<uint8_t> chunk(form().chunk_bytes(1000));
  encode_sums(gradient.data(), FSCCL_FLOAT32, 1000, form(), nullptr, chunk.data());
  for (const size_t at :
       {size_t{0}, size_t{5}, size_t{9}, size_t{13}, size_t{40}, chunk.size() - 1}) {
    std::vector<uint8_t> wrong = chunk;
    wrong[at] ^= 4;
    EXPECT_EQ(add_sums(wrong.data(), wrong.size(), sums.data(), 1000, form(), true), 0u) << at;
    EXPECT_EQ(sums, Floats(1000, 1.0f));
  }
  EXPECT_EQ(add_sums(chunk.data(), chunk.size() - 1, sums.data(), 1000, form(), true), 0u);
}

INSTANTIATE_TEST_SUITE_P(Kinds, Sums,
                         testing::Values(BlockKind::int8, BlockKind::int4, BlockKind::bf16));

}  // namespace
}  // namespace fsccl
