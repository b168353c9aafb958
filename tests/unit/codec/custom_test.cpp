// Tests codecs of a program: tables that are refused, blocks within their bound, blocks that are
// carried exactly, and codecs that do not do what their table promises.
#include "codec/custom.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "codec/blocks.h"
#include "examples/float12.h"
#include "tests/unit/codec/words.h"

namespace fsccl {
namespace {

using ::testing::HasSubstr;
using Floats = std::vector<float>;

std::shared_ptr<const CustomCodec> codec_of(const fsccl_block_codec_t& table,
                                            uint32_t block = 128) {
  auto made = CustomCodec::make(&table, block);
  EXPECT_TRUE(made.ok()) << made.status().text();
  return made.take();
}

Floats normal_floats(size_t count) {
  Random random(11);
  std::normal_distribution<float> normal(0, 0.02f);
  Floats made(count);
  for (float& one : made) one = normal(random);
  return made;
}

struct CustomChunk {
  std::vector<uint8_t> bytes;
  BlocksWritten written;
};
CustomChunk encode_floats(const Floats& from, const BlockForm& form, BlockAudit audit) {
  audit.room = from.size() * sizeof(float);
  CustomChunk made;
  made.bytes.resize(form.chunk_bytes(from.size()) + audit.room);
  made.written =
      encode_blocks(from.data(), FSCCL_FLOAT32, from.size(), form, audit, made.bytes.data());
  EXPECT_LE(made.written.bytes, made.bytes.size());
  made.bytes.resize(made.written.bytes);
  return made;
}

TEST(CustomCodec, TablesThatCannotBeAreRefused) {
  const auto expect_refused = [](const fsccl_block_codec_t* table, const char* why) {
    const auto made = CustomCodec::make(table, 128);
    ASSERT_FALSE(made.ok()) << why;
    EXPECT_EQ(made.status().code(), FSCCL_ERR_INVALID_ARGUMENT);
    EXPECT_THAT(made.status().text(), HasSubstr(why));
  };
  const auto with = [&](const auto& change, const char* why) {
    fsccl_block_codec_t table = kFloat12;
    change(table);
    expect_refused(&table, why);
  };
  expect_refused(nullptr, "needs a table");
  with([](auto& table) { table.size = 0; }, "FSCCL_BLOCK_CODEC_INIT");
  with([](auto& table) { table.size -= sizeof(void*); }, "FSCCL_BLOCK_CODEC_INIT");
  with([](auto& table) { table.size += 1; }, "FSCCL_BLOCK_CODEC_INIT");
  with([](auto& table) { table.name = nullptr; }, "no name of 1 to 31");
  with([](auto& table) { table.name = ""; }, "no name of 1 to 31");
  with([](auto& table) { table.name = "Of 12 bits"; }, "no name of 1 to 31");
  with([](auto& table) { table.name = "a-name-of-thirty-two-characters-"; }, "no name of 1 to 31");
  with([](auto& table) { table.name = "int8"; }, "built-in");
  with([](auto& table) { table.bytes = nullptr; }, "no bytes()");
  with([](auto& table) { table.encode = nullptr; }, "no encode()");
  with([](auto& table) { table.decode = nullptr; }, "no decode()");
  for (const double bound : {0.0, -0.5, 1.5, static_cast<double>(NAN)})
    with([&](auto& table) { table.bound = bound; }, "above 0 and at most 1");
  with([](auto& table) { table.bytes = [](void*, size_t) { return size_t{0}; }; },
       "0 bytes for a block of 1 elements");
  with([](auto& table) { table.bytes = [](void*, size_t count) { return count * 5; }; },
       "325 bytes for a block of 65 elements");
  with([](auto& table) { table.bytes = [](void*, size_t) { return ~size_t{0}; }; }, "1 to 68");
  fsccl_block_codec_t longer[2] = {kFloat12, kFloat12};
  longer[0].size = sizeof longer;  // a table of a later header
  EXPECT_TRUE(CustomCodec::make(longer, 128).ok());
}

TEST(CustomCodec, WhatRanksCompareIsInTheHash) {
  const uint64_t hash = codec_of(kFloat12)->hash();
  EXPECT_EQ(hash, codec_of(kFloat12)->hash());
  const auto expect_other = [&](const auto& change) {
    fsccl_block_codec_t table = kFloat12;
    change(table);
    EXPECT_NE(codec_of(table)->hash(), hash);
  };
  expect_other([](auto& table) { table.name = "float13"; });
  expect_other([](auto& table) { table.version++; });
  expect_other([](auto& table) { table.bound *= 2; });
  expect_other([](auto& table) {
    table.bytes = [](void*, size_t count) { return (3 * count + 1) / 2 + (count == 5); };
  });
  EXPECT_NE(codec_of(kFloat12, 64)->hash(), hash);
}

TEST(CustomCodec, BlocksKeepTheBound) {
  for (const uint32_t block : {32u, 128u, 1024u})
    for (const size_t count : {size_t{1}, size_t{31}, size_t{127}, size_t{4097}, kBlocksMost}) {
      const auto codec = codec_of(kFloat12, block);
      const BlockForm form{BlockKind::custom, block, codec.get()};
      Floats words = normal_floats(count);
      if (count > 4000) words[2000] = NAN;
      std::fill_n(words.begin(), std::min<size_t>(count, block), 0.0f);
      const CustomChunk coded = encode_floats(words, form, {.every = 1});
      EXPECT_EQ(coded.written.blocks, form.blocks(count));
      EXPECT_EQ(coded.written.exact, count > 4000);
      EXPECT_EQ(coded.written.audited, coded.written.blocks - coded.written.exact);
      EXPECT_EQ(coded.written.beyond, 0u);
      EXPECT_FALSE(coded.written.overrun);
      EXPECT_LE(coded.written.largest, 1.0f / 16);
      Floats back(count);
      ASSERT_EQ(decode_blocks(coded.bytes.data(), coded.bytes.size(), back.data(), FSCCL_FLOAT32,
                              count, form),
                coded.bytes.size());
      for (size_t i = 0; i < count; i++)
        ASSERT_TRUE(std::fabs(words[i] - back[i]) <= std::fabs(words[i]) / 16 ||
                    std::isnan(words[i]))
            << i;
      if (count > 4000) {
        const size_t first = 2000 / block * block, in_block = std::min<size_t>(block, 2000 - first);
        EXPECT_EQ(std::memcmp(&words[first], &back[first], in_block * sizeof(float)), 0);
      }
      std::vector<uint8_t> wrong = coded.bytes;
      wrong[wrong.size() / 2] ^= 1;
      EXPECT_EQ(decode_blocks(wrong.data(), wrong.size(), back.data(), FSCCL_FLOAT32, count, form),
                0u);
    }
}

TEST(CustomCodec, BlocksBeyondWhatIsAskedGoExactly) {
  const auto codec = codec_of(kFloat12);
  const BlockForm form{BlockKind::custom, 128, codec.get()};
  const Floats words = normal_floats(1280);
  const CustomChunk coded = encode_floats(words, form, {.most_error = 1e-4});
  EXPECT_EQ(coded.written.exact, 10u);
  EXPECT_EQ(coded.written.beyond, 0u);
  Floats back(words.size());
  ASSERT_TRUE(decode_blocks(coded.bytes.data(), coded.bytes.size(), back.data(), FSCCL_FLOAT32,
                            words.size(), form));
  EXPECT_EQ(back, words);
}

// A table whose functions misbehave as a test says, and otherwise do what those of kFloat12 do.
struct Liar {
  fsccl_block_codec_t table = kFloat12;
  ptrdiff_t beyond = 0;          // the byte behind its block that encode() changes; 0: none
  ptrdiff_t decoded_beyond = 0;  // the same for decode()
  float adds = 0;                // the number that decode() adds to each element
  float spoils = 0;              // if not 0, encode() overwrites its input with this number
  int encodes = 0;

  Liar() {
    table.context = this;
    table.encode = [](void* context, const float* elements, size_t count, void* out) {
      auto& self = *static_cast<Liar*>(context);
      self.encodes++;
      kFloat12.encode(nullptr, elements, count, out);
      if (self.beyond)
        static_cast<uint8_t*>(
            out)[static_cast<ptrdiff_t>(kFloat12.bytes(nullptr, count)) + self.beyond - 1] ^= 1;
      if (self.spoils != 0) {
        std::memset(out, 0, kFloat12.bytes(nullptr, count));
        for (size_t i = 0; i < count; i++) const_cast<float*>(elements)[i] = 0;
      }
    };
    table.decode = [](void* context, const void* in, size_t count, float* elements) {
      const auto& self = *static_cast<Liar*>(context);
      kFloat12.decode(nullptr, in, count, elements);
      for (size_t i = 0; i < count; i++) elements[i] += self.adds;
      if (self.decoded_beyond)
        reinterpret_cast<uint8_t*>(elements + count)[self.decoded_beyond - 1] ^= 1;
    };
  }
};

TEST(CustomCodec, AMeasuredErrorBeyondTheBoundIsTold) {
  const Floats words = normal_floats(1280);
  for (const float adds : {0.5f, INFINITY, NAN}) {
    Liar liar;
    liar.adds = adds;
    const auto codec = codec_of(liar.table);
    const BlockForm form{BlockKind::custom, 128, codec.get()};
    const CustomChunk coded = encode_floats(words, form, {.every = 5});
    EXPECT_EQ(coded.written.beyond, 2u);
    EXPECT_EQ(coded.written.exact, 2u);
    EXPECT_GT(coded.written.worst, 1.0f);
    EXPECT_EQ(std::isinf(coded.written.worst), adds != 0.5f);
  }
}

TEST(CustomCodec, TheFunctionsDoNotSeeZeros) {
  Liar liar;
  liar.adds = 0.5f;
  const auto codec = codec_of(liar.table);
  const BlockForm form{BlockKind::custom, 128, codec.get()};
  const Floats zeros(200, 0.0f);
  const CustomChunk coded = encode_floats(zeros, form, {.every = 1});
  EXPECT_EQ(coded.written.beyond, 0u);
  EXPECT_EQ(coded.written.exact, 0u);
  Floats back(zeros.size(), 1.0f);
  ASSERT_TRUE(decode_blocks(coded.bytes.data(), coded.bytes.size(), back.data(), FSCCL_FLOAT32,
                            back.size(), form));
  EXPECT_EQ(back, zeros);
  EXPECT_EQ(liar.encodes, 0);
}

struct SumsOf {
  SumsWritten written;
  size_t added = 0;
  Overrun overrun;
  Floats made;
};
SumsOf sums_of(const Floats& from, const CustomCodec& codec, float* feedback = nullptr,
               BlockAudit audit = {.every = 1}) {
  const BlockForm form{BlockKind::custom, codec.block(), &codec};
  std::vector<uint8_t> chunk(form.chunk_bytes(from.size()));
  SumsOf sums{.made = Floats(from.size(), 1.0f)};
  sums.written =
      encode_sums(from.data(), FSCCL_FLOAT32, from.size(), form, feedback, chunk.data(), audit);
  sums.added = add_sums(chunk.data(), chunk.size(), sums.made.data(), from.size(), form, true,
                        &sums.overrun);
  const bool valid = sums.written.worst == 0 && !sums.written.overrun && !sums.overrun;
  EXPECT_EQ(sums.added, valid ? chunk.size() : 0);
  return sums;
}

TEST(CustomCodec, SumsKeepTheBound) {
  const auto codec = codec_of(kFloat12);
  Floats words = normal_floats(1000);
  words[300] = INFINITY;                             // in block 2
  std::fill_n(words.begin() + 512, 128, 0.0f);       // block 4
  std::fill_n(words.begin() + 640, 128, 0x1p-120f);  // block 5
  std::fill_n(words.begin() + 768, 128, 0x1p99f);    // block 6
  const SumsOf sums = sums_of(words, *codec);
  EXPECT_FALSE(sums.written.overrun);
  EXPECT_EQ(sums.written.worst, 0);
  for (size_t i = 0; i < words.size(); i++) {
    if (i / 128 == 2)
      EXPECT_TRUE(std::isnan(sums.made[i])) << i;
    else if (i / 128 == 4 || i / 128 == 5)
      EXPECT_EQ(sums.made[i], 1.0f) << i;
    else
      EXPECT_LE(std::fabs(sums.made[i] - 1 - words[i]), std::fabs(words[i]) / 16 + 1e-6f) << i;
  }
}

TEST(CustomCodec, SumsFeedBackWhatTheyLose) {
  const auto codec = codec_of(kFloat12);
  const Floats words = normal_floats(1000);
  Floats feedback(words.size(), 0.0f);
  std::vector<double> all(words.size(), 0.0);
  constexpr int kSteps = 50;
  for (int step = 0; step < kSteps; step++) {
    const SumsOf sums = sums_of(words, *codec, feedback.data());
    for (size_t i = 0; i < words.size(); i++) all[i] += static_cast<double>(sums.made[i]) - 1;
  }
  for (size_t i = 0; i < words.size(); i++)
    EXPECT_NEAR(all[i] / kSteps, static_cast<double>(words[i]), std::fabs(words[i]) / 400 + 1e-6)
        << i;
}

// Each block is measured once in `every` operations, however many blocks an operation has.
TEST(CustomCodec, TheAuditComesToEveryBlock) {
  for (const uint32_t every : {1u, 2u, 8u, 256u})
    for (const uint64_t blocks : {1u, 4u, 8u, 255u, 256u, 512u, 1000u}) {
      std::vector<int> measured(blocks);
      for (uint64_t run = 0; run < every; run++) {
        // The operation has chunks of three blocks.
        for (uint64_t first = 0; first < blocks; first += 3)
          for (uint64_t block = first + audit_phase(run, first, every);
               block < std::min(first + 3, blocks); block += every)
            measured[block]++;
      }
      EXPECT_EQ(measured, std::vector<int>(blocks, 1)) << every << " of " << blocks;
    }
}

// A loss beyond the bound would stay in the feedback for good.
TEST(CustomCodec, WithFeedbackSumsMeasureEveryBlock) {
  const Floats words = normal_floats(1280);
  Liar liar;
  liar.adds = NAN;
  const auto codec = codec_of(liar.table);
  Floats feedback(words.size(), 0.0f);
  const BlockAudit never{.every = 1u << 30, .phase = 1u << 20};
  EXPECT_EQ(sums_of(words, *codec, nullptr, never).written.worst, 0);
  EXPECT_TRUE(std::isinf(sums_of(words, *codec, feedback.data(), never).written.worst));
}

TEST(CustomCodec, SumsTellWhatACodecDoesWrong) {
  const Floats words = normal_floats(1280);
  Liar adds, beyond, decodes;
  adds.adds = 0.5f;
  const auto measured = codec_of(adds.table);
  EXPECT_GT(sums_of(words, *measured).written.worst, 1.0f);
  EXPECT_EQ(sums_of(words, *measured, nullptr, {.every = 100, .phase = 10}).written.worst, 0);
  EXPECT_GT(sums_of(words, *measured, nullptr, {.every = 100, .phase = 9}).written.worst, 1.0f);
  adds.adds = NAN;
  EXPECT_TRUE(std::isinf(sums_of(words, *measured).written.worst));
  beyond.beyond = 3;
  const SumsOf written = sums_of(words, *codec_of(beyond.table));
  EXPECT_EQ(written.written.overrun.by, Overrun::By::encode);
  EXPECT_EQ(written.written.overrun.beyond, 3u);
  decodes.decoded_beyond = 5;
  const SumsOf decoded = sums_of(words, *codec_of(decodes.table), nullptr, {.every = 0});
  EXPECT_FALSE(decoded.written.overrun);
  EXPECT_EQ(decoded.overrun.by, Overrun::By::decode);
  EXPECT_EQ(decoded.overrun.beyond, 5u);
}

// The codec overwrites its input, so that the decoded elements would equal the input. The measured
// error is right nevertheless, because the codec gets a copy.
TEST(CustomCodec, ItsInputIsACopy) {
  Liar liar;
  liar.spoils = 1;
  const auto codec = codec_of(liar.table);
  const Floats words = normal_floats(128);
  const CustomChunk coded =
      encode_floats(words, {BlockKind::custom, 128, codec.get()}, {.every = 1});
  EXPECT_EQ(coded.written.beyond, 1u);
  EXPECT_EQ(words, normal_floats(128));
}

TEST(CustomCodec, AWriteBeyondItsSizeIsTold) {
  const Floats words = normal_floats(1280 + 7);
  for (const ptrdiff_t beyond : {1, 2, 64, 256, 300, 4096}) {
    Liar liar;
    liar.beyond = beyond;
    const auto codec = codec_of(liar.table);
    const BlockForm form{BlockKind::custom, 128, codec.get()};
    const CustomChunk coded = encode_floats(words, form, {});
    EXPECT_EQ(coded.written.overrun.by, Overrun::By::encode);
    EXPECT_EQ(coded.written.overrun.beyond, beyond);
    EXPECT_EQ(coded.written.overrun.count, 128u);
    EXPECT_EQ(coded.written.bytes, 0u);
    EXPECT_EQ(liar.encodes, 1) << "it was called again";

    liar.beyond = 0;
    const CustomChunk good = encode_floats(words, form, {.every = 0});
    ASSERT_TRUE(good.written.bytes);
    liar.decoded_beyond = beyond;
    Floats back(words.size());
    Overrun overrun;
    EXPECT_EQ(decode_blocks(good.bytes.data(), good.bytes.size(), back.data(), FSCCL_FLOAT32,
                            back.size(), form, &overrun),
              0u);
    EXPECT_EQ(overrun.by, Overrun::By::decode);
    EXPECT_EQ(overrun.beyond, beyond);
    EXPECT_EQ(encode_floats(words, form, {.every = 1}).written.overrun.by, Overrun::By::decode);
  }
}

// The output begins at a guard, too: a loop from the end may run too far.
TEST(CustomCodec, AWriteBeforeItsOutputIsTold) {
  const Floats words = normal_floats(128);
  for (const ptrdiff_t before : {1, 64, 256, 3900}) {
    Liar liar;
    const auto codec = codec_of(liar.table);
    const BlockForm form{BlockKind::custom, 128, codec.get()};
    liar.beyond = 1 - before - static_cast<ptrdiff_t>(codec->bytes(128));
    const Overrun encoded = encode_floats(words, form, {}).written.overrun;
    EXPECT_EQ(encoded.by, Overrun::By::encode);
    EXPECT_EQ(encoded.before, before);
    EXPECT_EQ(encoded.beyond, 0u);
    EXPECT_THAT(
        codec->text_of(encoded),
        HasSubstr(fmt::format("encode() wrote {} bytes or more before the 192 bytes", before)));
    liar.beyond = 0;
    liar.decoded_beyond = 1 - before - static_cast<ptrdiff_t>(128 * sizeof(float));
    const Overrun decoded = encode_floats(words, form, {.every = 1}).written.overrun;
    EXPECT_EQ(decoded.by, Overrun::By::decode);
    EXPECT_EQ(decoded.before, before);
  }
}

// A write that goes far from the output would change memory of others, so it ends the process.
TEST(CustomCodecDeathTest, AWriteFarFromItsOutputEndsTheProcess) {
  const Floats words = normal_floats(128);
  for (const ptrdiff_t place : {9'000, 60'000, -200'000}) {
    Liar liar;
    liar.beyond = place;
    const auto codec = codec_of(liar.table);
    const BlockForm form{BlockKind::custom, 128, codec.get()};
    EXPECT_DEATH((void)encode_floats(words, form, {}), "") << place;
  }
}

TEST(CustomCodec, ThoseInUseAreListedOnce) {
  EXPECT_TRUE(custom_codecs_in_use().empty());
  const auto one = codec_of(kFloat12), same = codec_of(kFloat12), other = codec_of(kFloat12, 32);
  const std::vector<CustomCodecInUse> found = custom_codecs_in_use();
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].name, "float12");
  EXPECT_EQ(found[0].bytes, 192u);
  EXPECT_EQ(found[1].block, 32u);
}

}  // namespace
}  // namespace fsccl
