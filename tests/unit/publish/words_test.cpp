// Tests pieces of every type as 16-bit words and back, in parts that begin and end anywhere.
#include "publish/words.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "kernels/kernels.h"

namespace fsccl::publish {
namespace {

TEST(Words, EveryTypeComesBackExactly) {
  std::mt19937_64 random(3);
  for (int type = 0; type < FSCCL_DTYPE_COUNT; type++) {
    const auto dtype = static_cast<fsccl_dtype_t>(type);
    const size_t size = dtype_size(dtype);
    for (const uint64_t count : {1, 2, 3, 77, 5000}) {
      std::vector<uint8_t> bytes(count * size), back(count * size);
      for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
      std::vector<uint16_t> words(words_of(dtype, count));
      for (size_t at = 0; at < words.size();) {
        const size_t some = std::min<size_t>(1 + random() % 999, words.size() - at);
        read_words(bytes.data(), dtype, dtype, count, at, some, words.data() + at);
        at += some;
      }
      for (uint64_t at = 0; at < count;) {
        const uint64_t some = std::min<uint64_t>(1 + random() % 999, count - at);
        write_elements(words.data(), dtype, count, at, some, back.data() + at * size, dtype);
        at += some;
      }
      EXPECT_EQ(back, bytes) << dtype_name(dtype) << ' ' << count;
    }
  }
}

TEST(Words, PlanesHaveTheUpperBitsFirst) {
  const std::vector<uint32_t> numbers = {0x11112222, 0x33334444, 0x55556666};
  std::vector<uint16_t> words(6);
  read_words(numbers.data(), FSCCL_FLOAT32, FSCCL_FLOAT32, 3, 0, 6, words.data());
  EXPECT_EQ(words, (std::vector<uint16_t>{0x1111, 0x3333, 0x5555, 0x2222, 0x4444, 0x6666}));
}

TEST(Words, FloatsAreConvertedOnTheWay) {
  std::mt19937 random(4);
  std::vector<float> numbers(3000);
  for (float& number : numbers) number = static_cast<float>(random()) / 3e8f - 7;
  std::vector<uint16_t> words(numbers.size()), expected(numbers.size());
  ASSERT_TRUE(cast(expected.data(), FSCCL_BFLOAT16, numbers.data(), FSCCL_FLOAT32, numbers.size(),
                   Stores::cached));
  read_words(numbers.data(), FSCCL_FLOAT32, FSCCL_BFLOAT16, numbers.size(), 0, 1000, words.data());
  read_words(numbers.data(), FSCCL_FLOAT32, FSCCL_BFLOAT16, numbers.size(), 1000, 2000,
             words.data() + 1000);
  EXPECT_EQ(words, expected);
  std::vector<float> back(10);
  write_elements(words.data(), FSCCL_BFLOAT16, numbers.size(), 5, 10, back.data(), FSCCL_FLOAT32);
  for (size_t i = 0; i < back.size(); i++) {
    uint32_t bits = 0;
    std::memcpy(&bits, &back[i], sizeof bits);
    EXPECT_EQ(bits, uint32_t{expected[5 + i]} << 16);
  }
}

}  // namespace
}  // namespace fsccl::publish
