// Tests CRC32C, by the instruction and by tables, with known answers and against the definition, at
// every size at which a run of bytes begins or ends.
#include "kernels/crc32c.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string_view>
#include <vector>

namespace fsccl {
namespace {

using Sum = uint32_t (*)(const void*, size_t, uint32_t);

class Crc32c : public testing::TestWithParam<Sum> {
 protected:
  static uint32_t sum(const void* data, size_t bytes, uint32_t before = 0) {
    return GetParam()(data, bytes, before);
  }
};

// The known answers are those of RFC 3720 (iSCSI), appendix B.4, and the check value of the
// polynomial.
TEST_P(Crc32c, HasTheKnownAnswers) {
  constexpr std::string_view kCheck = "123456789";
  EXPECT_EQ(sum(kCheck.data(), kCheck.size()), 0xe3069283);
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(sum(bytes.data(), bytes.size()), 0x8a9136aa);
  bytes.assign(32, 0xff);
  EXPECT_EQ(sum(bytes.data(), bytes.size()), 0x62a8ab43);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(sum(bytes.data(), bytes.size()), 0x46dd794e);
  std::iota(bytes.rbegin(), bytes.rend(), uint8_t{0});
  EXPECT_EQ(sum(bytes.data(), bytes.size()), 0x113fdb5c);
  constexpr uint8_t kRead[] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0,    0, 0, 0,    0, 0, 0, 0,
                               0x14, 0,    0, 0, 0, 0, 0x04, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                               0x28, 0,    0, 0, 0, 0, 0,    0, 0x02, 0, 0, 0,    0, 0, 0, 0};
  EXPECT_EQ(sum(kRead, sizeof kRead), 0xd9963a56);
  EXPECT_EQ(sum(nullptr, 0), 0);
}

// Computes the checksum bit after bit, as the definition has it.
uint32_t by_definition(const uint8_t* at, size_t bytes) {
  uint32_t state = ~uint32_t{0};
  for (; bytes; at++, bytes--) {
    state ^= *at;
    for (int bit = 0; bit < 8; bit++) state = state >> 1 ^ (state & 1 ? 0x82f63b78 : 0);
  }
  return ~state;
}

TEST_P(Crc32c, IsTheDefinitionAtEverySizeAndPlace) {
  std::vector<uint8_t> bytes(3 * 4096 * 2 + 3 * 256 + 64);
  uint32_t random = 1;
  for (uint8_t& byte : bytes)
    byte = static_cast<uint8_t>((random = random * 1664525 + 1013904223) >> 24);
  std::vector<size_t> sizes(70);
  std::iota(sizes.begin(), sizes.end(), size_t{0});
  for (const size_t edge : {3 * 256, 6 * 256, 3 * 4096, 3 * 4096 + 3 * 256, 6 * 4096})
    for (size_t size = edge - 9; size <= edge + 9; size++) sizes.push_back(size);
  for (const size_t size : sizes)
    for (const size_t begin : {0, 1, 7})
      EXPECT_EQ(sum(&bytes[begin], size), by_definition(&bytes[begin], size)) << size;
}

TEST_P(Crc32c, GoesOnWhereItStopped) {
  std::vector<uint8_t> bytes(20'000, 0x5a);
  const uint32_t whole = sum(bytes.data(), bytes.size());
  for (const size_t cut : {1, 8, 777, 12'288, 19'999})
    EXPECT_EQ(sum(&bytes[cut], bytes.size() - cut, sum(bytes.data(), cut)), whole);
}

INSTANTIATE_TEST_SUITE_P(Ways, Crc32c, testing::Values(Sum{crc32c}, Sum{crc32c_portable}),
                         [](const auto& way) {
                           return way.param == Sum{crc32c} ? "asChosen" : "byTables";
                         });

}  // namespace
}  // namespace fsccl
