// Tests rANS sections: symbols come back, sizes are near the entropy, every instruction set makes
// the same bytes, and damage is found.
#include "codec/rans.h"

#include <gtest/gtest.h>

#include "codec/rans_table.h"
#include "tests/unit/codec/words.h"

namespace fsccl {
namespace {

using Bytes = std::vector<uint8_t>;

Bytes coded(Bytes bytes) {
  const size_t count = bytes.size();
  bytes.resize(rans_room(count));
  Bytes made(rans_bound(count));
  made.resize(rans_encode(bytes.data(), count, made.data()));
  return made;
}

// Decodes a copy of the section that has no byte behind it, so that a sanitizer sees a read beyond.
bool decoded(const Bytes& section, size_t count, Bytes* bytes) {
  bytes->assign(rans_room(count), 0);
  const Bytes exact(section.begin(), section.end());
  const bool good = rans_decode(exact.data(), exact.size(), bytes->data(), count);
  bytes->resize(count);
  return good;
}

// Returns random symbols, each `ratio` times as probable as the one before.
Bytes geometric(size_t count, double ratio, Random& random) {
  std::geometric_distribution<int> distribution(1 - ratio);
  Bytes made(count);
  for (uint8_t& byte : made) byte = static_cast<uint8_t>(std::min(255, distribution(random)));
  return made;
}

double entropy_bytes(const Bytes& bytes) {
  std::array<uint32_t, 256> counts = count_bytes_of(bytes.data(), bytes.size());
  double bits = 0;
  for (const double count : counts)
    if (count > 0) bits -= count * std::log2(count / static_cast<double>(bytes.size()));
  return bits / 8;
}

TEST(Rans, WhatWasCodedComesBackWithTheSameBytesOnEveryTarget) {
  Random random(7);
  for (const size_t count : {1, 2, 31, 32, 33, 64, 1000, 65536, 65537})
    for (const double ratio : {0.0001, 0.05, 0.5, 0.95, 0.999}) {
      const Bytes bytes = geometric(count, ratio, random);
      const Bytes section = coded(bytes);
      on_each_target([&](int64_t target) {
        Bytes back;
        EXPECT_EQ(coded(bytes), section) << hwy::TargetName(target) << " " << count << " " << ratio;
        EXPECT_TRUE(decoded(section, count, &back));
        EXPECT_EQ(back, bytes) << hwy::TargetName(target) << " " << count << " " << ratio;
      });
    }
}

TEST(Rans, OneSymbolAloneAndAllAlike) {
  for (const uint8_t symbol : {uint8_t{0}, uint8_t{1}, uint8_t{255}}) {
    const Bytes bytes(5000, symbol);
    Bytes back;
    ASSERT_TRUE(decoded(coded(bytes), bytes.size(), &back));
    EXPECT_EQ(back, bytes);
  }
  Bytes bytes(65536);
  for (size_t i = 0; i < bytes.size(); i++) bytes[i] = static_cast<uint8_t>(i);
  Bytes back;
  ASSERT_TRUE(decoded(coded(bytes), bytes.size(), &back));
  EXPECT_EQ(back, bytes);
}

TEST(Rans, IsNearTheEntropy) {
  Random random(9);
  for (const double ratio : {0.05, 0.2, 0.5, 0.8, 0.95}) {
    const Bytes bytes = geometric(65536, ratio, random);
    EXPECT_LE(static_cast<double>(coded(bytes).size()), 1.02 * entropy_bytes(bytes) + 300) << ratio;
  }
}

TEST(Rans, FrequenciesAddUpWhateverTheCountsAre) {
  Random random(11);
  for (int i = 0; i < 2000; i++) {
    std::array<uint32_t, 256> counts{};
    size_t count = 0;
    for (uint32_t& one : counts) {
      if (random() % (1 + i % 256) == 0)
        one = static_cast<uint32_t>(random() % (1 + random() % 65536));
      count += one;
    }
    if (count == 0) counts[5] = 1, count = 1;
    const RansFrequencies made = rans_frequencies(counts, count);
    uint32_t sum = 0;
    for (size_t s = 0; s < 256; s++) {
      sum += made[s];
      EXPECT_TRUE(!counts[s] || made[s]);
      EXPECT_LT(made[s], kRansScale);
    }
    EXPECT_EQ(sum, kRansScale);
  }
}

TEST(Rans, DamageIsFoundOrGivesOtherBytes) {
  Random random(13);
  const Bytes bytes = geometric(4000, 0.7, random);
  const Bytes section = coded(bytes);
  Bytes back;
  for (size_t cut = 0; cut < section.size(); cut += 7)
    EXPECT_FALSE(decoded({section.begin(), section.begin() + static_cast<ptrdiff_t>(cut)},
                         bytes.size(), &back));
  for (size_t at = 0; at < section.size(); at++) {
    Bytes wrong = section;
    wrong[at] = static_cast<uint8_t>(wrong[at] ^ (1u << at % 8));
    EXPECT_FALSE(decoded(wrong, bytes.size(), &back) && back == bytes) << at;
  }
}

}  // namespace
}  // namespace fsccl
