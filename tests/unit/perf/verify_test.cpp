#include "perf/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "perf/numbers.h"

namespace fsccl::perf {
namespace {

constexpr uint64_t kCount = 2000;

std::vector<unsigned char> filled(fsccl_dtype_t dtype, uint64_t first, Seeds seeds) {
  std::vector<unsigned char> data(kCount * 8);
  fill(data.data(), dtype, kCount, first, seeds);
  return data;
}

TEST(CountWrongCopy, SeesWriterGenerationAndPlace) {
  for (const DtypeName& entry : reducible_dtypes()) {
    const auto data = filled(entry.dtype, 100, seeds_of(1, 5, 3));
    EXPECT_EQ(count_wrong_copy(data.data(), entry.dtype, kCount, 100, seeds_of(1, 5, 3)), 0u)
        << entry.name;
    for (const uint64_t wrong :
         {count_wrong_copy(data.data(), entry.dtype, kCount, 101, seeds_of(1, 5, 3)),
          count_wrong_copy(data.data(), entry.dtype, kCount, 100, seeds_of(1, 6, 3)),
          count_wrong_copy(data.data(), entry.dtype, kCount, 100, seeds_of(1, 5, 4)),
          count_wrong_copy(data.data(), entry.dtype, kCount, 100, seeds_of(2, 5, 3))})
      EXPECT_GT(wrong, kCount * 9 / 10) << entry.name;
  }
}

TEST(CountWrongCopy, CountsEachElementOnce) {
  auto data = filled(FSCCL_FLOAT32, 0, seeds_of(0, 1, 0));
  data[4 * 7] ^= 1;
  data[4 * 9 + 2] ^= 0x10;
  data[4 * 9 + 3] ^= 0x40;
  EXPECT_EQ(count_wrong_copy(data.data(), FSCCL_FLOAT32, kCount, 0, seeds_of(0, 1, 0)), 2u);
}

TEST(CountWrong, AnUnknownTypeIsAllWrong) {
  uint64_t zero = 0;
  EXPECT_EQ(count_wrong_copy(&zero, FSCCL_FLOAT8_E4M3, 8, 0, seeds_of(0, 0, 0)), 8u);
  EXPECT_EQ(count_wrong_reduced(&zero, FSCCL_BOOL, FSCCL_BOOL, 8, 0, 0, 0, 2, FSCCL_SUM), 8u);
}

// A plain reference for floats, which sums in fp32 and rounds once.
std::vector<float> summed(uint32_t ranks, bool leave_out_last) {
  std::vector<float> sum(kCount, 0), part(kCount);
  for (uint32_t r = 0; r + (leave_out_last ? 1 : 0) < ranks; r++) {
    fill(part.data(), FSCCL_FLOAT32, kCount, 0, seeds_of(2, 9, r));
    for (uint64_t j = 0; j < kCount; j++) sum[j] += part[j];
  }
  return sum;
}

TEST(CountWrongReduced, AcceptsAnFp32SumAndMissesNoRank) {
  for (uint32_t ranks : {1u, 2u, 3u, 8u, 64u}) {
    EXPECT_EQ(count_wrong_reduced(summed(ranks, false).data(), FSCCL_FLOAT32, FSCCL_FLOAT32, kCount,
                                  0, 2, 9, ranks, FSCCL_SUM),
              0u)
        << ranks;
    EXPECT_EQ(count_wrong_reduced(summed(ranks, true).data(), FSCCL_FLOAT32, FSCCL_FLOAT32, kCount,
                                  0, 2, 9, ranks, FSCCL_SUM),
              kCount)
        << ranks;
  }
}

TEST(CountWrongReduced, IntegersWrapAndAverageTowardsZero) {
  std::vector<int8_t> a(kCount), b(kCount), sum(kCount), average(kCount), most(kCount);
  fill(a.data(), FSCCL_INT8, kCount, 0, seeds_of(0, 1, 0));
  fill(b.data(), FSCCL_INT8, kCount, 0, seeds_of(0, 1, 1));
  for (uint64_t j = 0; j < kCount; j++) {
    sum[j] = static_cast<int8_t>(a[j] + b[j]);
    average[j] = static_cast<int8_t>(sum[j] / 2);
    most[j] = std::max(a[j], b[j]);
  }
  EXPECT_EQ(count_wrong_reduced(sum.data(), FSCCL_INT8, FSCCL_INT8, kCount, 0, 0, 1, 2, FSCCL_SUM),
            0u);
  EXPECT_EQ(
      count_wrong_reduced(average.data(), FSCCL_INT8, FSCCL_INT8, kCount, 0, 0, 1, 2, FSCCL_AVG),
      0u);
  EXPECT_EQ(count_wrong_reduced(most.data(), FSCCL_INT8, FSCCL_INT8, kCount, 0, 0, 1, 2, FSCCL_MAX),
            0u);
  EXPECT_GT(count_wrong_reduced(a.data(), FSCCL_INT8, FSCCL_INT8, kCount, 0, 0, 1, 2, FSCCL_MAX),
            kCount / 4);
  sum[0]++;
  EXPECT_EQ(count_wrong_reduced(sum.data(), FSCCL_INT8, FSCCL_INT8, kCount, 0, 0, 1, 2, FSCCL_SUM),
            1u);
}

// The fp32 sum, rounded once, is accepted. A value two units in the last place beside it is not.
TEST(CountWrongReduced, SixteenBitSumsAreRoundedOnce) {
  constexpr uint32_t kRanks = 3;
  std::vector<uint16_t> part(kCount), rounded(kCount), beside(kCount);
  std::vector<float> sum(kCount, 0);
  for (uint32_t r = 0; r < kRanks; r++) {
    fill(part.data(), FSCCL_BFLOAT16, kCount, 0, seeds_of(2, 9, r));
    for (uint64_t j = 0; j < kCount; j++)
      sum[j] += std::bit_cast<float>(static_cast<uint32_t>(part[j]) << 16);
  }
  for (uint64_t j = 0; j < kCount; j++) {
    rounded[j] = bfloat16_bits(sum[j]);
    beside[j] = static_cast<uint16_t>(rounded[j] + 2);
  }
  EXPECT_EQ(count_wrong_reduced(rounded.data(), FSCCL_BFLOAT16, FSCCL_BFLOAT16, kCount, 0, 2, 9,
                                kRanks, FSCCL_SUM),
            0u);
  EXPECT_EQ(count_wrong_reduced(beside.data(), FSCCL_BFLOAT16, FSCCL_BFLOAT16, kCount, 0, 2, 9,
                                kRanks, FSCCL_SUM),
            kCount);
}

TEST(CountWrongReduced, MeanOf16BitGradientsInFp32) {
  std::vector<uint16_t> a(kCount), b(kCount);
  std::vector<float> mean(kCount);
  fill(a.data(), FSCCL_BFLOAT16, kCount, 50, seeds_of(3, 1, 0));
  fill(b.data(), FSCCL_BFLOAT16, kCount, 50, seeds_of(3, 1, 1));
  const auto wide = [](uint16_t bits) {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  };
  for (uint64_t j = 0; j < kCount; j++) mean[j] = (wide(a[j]) + wide(b[j])) * 0.5f;
  EXPECT_EQ(count_wrong_reduced(mean.data(), FSCCL_FLOAT32, FSCCL_BFLOAT16, kCount, 50, 3, 1, 2,
                                FSCCL_AVG),
            0u);
  mean[17] *= 1.00001f;
  EXPECT_EQ(count_wrong_reduced(mean.data(), FSCCL_FLOAT32, FSCCL_BFLOAT16, kCount, 50, 3, 1, 2,
                                FSCCL_AVG),
            1u);
  for (float& value : mean) value = wide(bfloat16_bits(value));  // rounds the mean once too often
  EXPECT_GT(count_wrong_reduced(mean.data(), FSCCL_FLOAT32, FSCCL_BFLOAT16, kCount, 50, 3, 1, 2,
                                FSCCL_AVG),
            kCount / 4);
}

TEST(CountWrongCast, RoundsToNearestEven) {
  EXPECT_EQ(bfloat16_bits(1.0f), 0x3F80);
  // A value in the middle between two is rounded to the even one.
  EXPECT_EQ(bfloat16_bits(std::bit_cast<float>(0x3F808000u)), 0x3F80);
  EXPECT_EQ(bfloat16_bits(std::bit_cast<float>(0x3F818000u)), 0x3F82);
  EXPECT_EQ(half_bits(-1.5f), 0xBE00);
  EXPECT_EQ(half_bits(std::bit_cast<float>(0x3F801000u)), 0x3C00);
  EXPECT_EQ(half_bits(std::bit_cast<float>(0x3F803000u)), 0x3C02);
  EXPECT_EQ(half_bits(1.9999999f), 0x4000);
  std::vector<float> wide(kCount);
  std::vector<uint16_t> narrow(kCount);
  fill(wide.data(), FSCCL_FLOAT32, kCount, 0, seeds_of(4, 4, 4));
  for (uint64_t j = 0; j < kCount; j++) narrow[j] = half_bits(wide[j]);
  EXPECT_EQ(count_wrong_cast(narrow.data(), FSCCL_FLOAT16, kCount, 0, seeds_of(4, 4, 4)), 0u);
  EXPECT_GT(count_wrong_cast(narrow.data(), FSCCL_BFLOAT16, kCount, 0, seeds_of(4, 4, 4)),
            kCount * 9 / 10);
}

}  // namespace
}  // namespace fsccl::perf
