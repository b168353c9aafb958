// Compares averages with exact ones, on every instruction set: the sum in the accumulator's type,
// in the order of the sources, divided by their number and rounded once. The test divides in 113
// bits, from which one rounding to any of the types gives the exact result.
#include <algorithm>

#include "reference.h"

namespace fsccl {
namespace {

using namespace reference;

__extension__ typedef __float128 Wide;

constexpr uint64_t kSeed = 2236067;
// Rounds `value` to a format of 16 bits in one rounding, by way of an fp64 that is rounded to odd.
void write_once(fsccl_dtype_t to, uint8_t* at, Wide value) {
  if (to == FSCCL_FLOAT32) {
    const auto rounded = static_cast<float>(value);
    std::memcpy(at, &rounded, sizeof rounded);
  } else if (to == FSCCL_FLOAT64) {
    const auto rounded = static_cast<double>(value);
    std::memcpy(at, &rounded, sizeof rounded);
  } else {
    auto odd = static_cast<double>(value);
    const bool beyond = value < 0 ? Wide{odd} < value : Wide{odd} > value;
    if (beyond) odd = std::nextafter(odd, 0.0);
    uint64_t bits;
    std::memcpy(&bits, &odd, sizeof bits);
    bits |= Wide{odd} != value;
    std::memcpy(&odd, &bits, sizeof bits);
    write_float(to, at, odd);
  }
}

template <class A>
Wide average(std::vector<Buffer>& sources, fsccl_dtype_t from, size_t i) {
  A sum = 0;
  for (size_t s = 0; s < sources.size(); ++s) {
    const auto value = static_cast<A>(read_float(from, sources[s].data() + i * dtype_size(from)));
    sum = s == 0 ? value : sum + value;
  }
  return Wide{sum} / static_cast<int>(sources.size());
}

Reduce average_of(const std::vector<const void*>& sources, fsccl_dtype_t from, fsccl_dtype_t to,
                  void* dst, size_t count) {
  const auto n = static_cast<int>(sources.size());
  return {.sources = sources.data(),
          .n = n,
          .from = from,
          .dst = dst,
          .to = to,
          .count = count,
          .op = FSCCL_OP_AVG,
          .divisor = n};
}

// Fills the buffer with values far above the smallest normal bf16. Below that, a quotient that is
// rounded to fp32 first and then to bf16 may differ from one that is rounded once.
void fill(fsccl_dtype_t from, Buffer& buffer, size_t count, std::mt19937_64& random) {
  for (size_t i = 0; i < count; ++i) {
    const double value = (static_cast<double>(random() >> 11) * 0x1p-53 + 0.25) *
                         std::ldexp(1.0, static_cast<int>(random() % 13) - 6);
    write_float(from, buffer.data() + i * dtype_size(from), random() % 2 == 0 ? -value : value);
  }
}

TEST(Average, IsTheSumDividedAndRoundedOnce) {
  std::mt19937_64 random(kSeed);
  constexpr size_t kCount = 1499;
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const fsccl_dtype_t from : kFloats)
      for (const fsccl_dtype_t to : kFloats)
        for (size_t n = 1; n <= 33; n += n < 9 ? 1 : 6) {
          std::vector<Buffer> in;
          std::vector<const void*> sources;
          for (size_t s = 0; s < n; ++s)
            fill(from, in.emplace_back(kCount * dtype_size(from), s % 3), kCount, random);
          for (Buffer& one : in) sources.push_back(one.data());
          Buffer got(kCount * dtype_size(to), 0), want(kCount * dtype_size(to), 0);
          const bool wide = from == FSCCL_FLOAT64 || to == FSCCL_FLOAT64;
          for (size_t i = 0; i < kCount; ++i)
            write_once(to, want.data() + i * dtype_size(to),
                       wide ? average<double>(in, from, i) : average<float>(in, from, i));
          ASSERT_TRUE(reduce(average_of(sources, from, to, got.data(), kCount)));
          ASSERT_EQ(got.bytes(), want.bytes())
              << target << ": " << dtype_name(from) << " to " << dtype_name(to) << " over " << n;
        }
  }
}

// Takes every value of a 16-bit type, and integers in the wider types. Sums of fp16 values go far
// beyond what fp16 can hold.
TEST(Average, OfEqualValuesIsThatValue) {
  for (const std::string& target : targets()) {
    const UseTarget use(target);
    for (const fsccl_dtype_t dtype : kFloats) {
      constexpr size_t kCount = 65536;
      Buffer values(kCount * dtype_size(dtype), 0), got(kCount * dtype_size(dtype), 0);
      for (size_t i = 0; i < kCount; ++i) {
        uint8_t* const at = values.data() + i * dtype_size(dtype);
        const auto bits = static_cast<uint16_t>(i);
        if (dtype_size(dtype) == 2) std::memcpy(at, &bits, 2);
        const double value =
            dtype_size(dtype) == 2 ? read_float(dtype, at) : static_cast<double>(i) - 30000;
        write_float(dtype, at, std::abs(value) < 1e37 ? value : 1);
      }
      for (int n = 1; n <= 31; ++n) {
        const std::vector<const void*> sources(static_cast<size_t>(n), values.data());
        ASSERT_TRUE(reduce(average_of(sources, dtype, dtype, got.data(), kCount)));
        ASSERT_EQ(got.bytes(), values.bytes())
            << target << ": " << dtype_name(dtype) << " over " << n;
        ASSERT_TRUE(reduce(average_of(sources, dtype, dtype, got.data(), 3)));  // one at a time
        ASSERT_EQ(got.bytes(), values.bytes())
            << target << ": 3 of " << dtype_name(dtype) << " over " << n;
      }
    }
  }
}

TEST(Average, OfSumsBeyondTheAccumulatorIsInfinite) {
  const std::vector<float> large(20, 3e38f);
  std::vector<float> got(20);
  const std::vector<const void*> sources(3, large.data());
  ASSERT_TRUE(reduce(average_of(sources, FSCCL_FLOAT32, FSCCL_FLOAT32, got.data(), got.size())));
  for (const float value : got) EXPECT_EQ(value, std::numeric_limits<float>::infinity());
  std::vector<double> wide(20);
  ASSERT_TRUE(reduce(average_of(sources, FSCCL_FLOAT32, FSCCL_FLOAT64, wide.data(), wide.size())));
  for (const double value : wide) EXPECT_EQ(value, static_cast<double>(3e38f));
}

}  // namespace
}  // namespace fsccl
