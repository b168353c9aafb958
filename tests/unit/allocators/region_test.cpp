#include "allocators/placement/region.h"

#include <gtest/gtest.h>

#include <random>
#include <utility>
#include <vector>

namespace fsccl {
namespace {

// Keeps the same promises as the region by walking over a sorted list of blocks.
class NaiveRegion {
 public:
  explicit NaiveRegion(uint64_t capacity) : capacity_(capacity) {}

  std::optional<uint64_t> alloc(uint64_t bytes, uint64_t alignment) {
    std::optional<uint64_t> best;
    uint64_t best_gap = UINT64_MAX, end = 0;
    for (const auto& [offset, size] : blocks_) {
      const uint64_t at = (end + alignment - 1) / alignment * alignment;
      if (at + bytes <= offset && offset - end < best_gap) best = at, best_gap = offset - end;
      end = offset + size;
    }
    if (!best) best = (end + alignment - 1) / alignment * alignment;
    if (*best + bytes > capacity_) return std::nullopt;
    blocks_.emplace(*best, bytes);
    return best;
  }
  bool take(uint64_t begin, uint64_t bytes) {
    if (bytes == 0 || begin + bytes > capacity_) return false;
    for (const auto& [offset, size] : blocks_) {
      if (begin < offset + size && offset < begin + bytes) return false;
    }
    return blocks_.emplace(begin, bytes).second;
  }
  std::optional<uint64_t> free(uint64_t offset) {
    const auto block = blocks_.extract(offset);
    return block ? std::optional(block.mapped()) : std::nullopt;
  }
  const std::pmr::map<uint64_t, uint64_t>& blocks() const { return blocks_; }

 private:
  uint64_t capacity_;
  std::pmr::map<uint64_t, uint64_t> blocks_;
};

TEST(Region, AgreesWithANaiveModel) {
  for (const uint64_t seed : {1U, 2U, 3U, 4U}) {
    std::mt19937_64 random(seed);
    Region region(20'000);
    NaiveRegion naive(20'000);
    size_t refused = 0;
    for (int i = 0; i < 20'000; ++i) {
      const uint64_t kind = random() % 10;
      if (kind < 4) {
        const uint64_t bytes = 1 + random() % 700, alignment = uint64_t{1} << (random() % 8);
        const auto expected = naive.alloc(bytes, alignment);
        ASSERT_EQ(region.alloc(bytes, alignment), expected) << "seed " << seed << " call " << i;
        refused += !expected;
      } else if (kind < 6) {
        const uint64_t offset = random() % 20'500, bytes = random() % 500;
        ASSERT_EQ(region.take(offset, bytes), naive.take(offset, bytes))
            << "seed " << seed << " call " << i;
      } else {
        auto block = naive.blocks().lower_bound(random() % 20'000);
        const uint64_t offset =
            kind == 9 || block == naive.blocks().end() ? random() % 20'000 : block->first;
        ASSERT_EQ(region.free(offset), naive.free(offset)) << "seed " << seed << " call " << i;
      }
      ASSERT_EQ(region.used(), naive.blocks());
      uint64_t live = 0;
      for (const auto& [offset, bytes] : naive.blocks()) live += bytes;
      ASSERT_EQ(region.live(), live);
      ASSERT_EQ(region.top(), naive.blocks().empty() ? 0
                                                     : naive.blocks().rbegin()->first +
                                                           naive.blocks().rbegin()->second);
    }
    EXPECT_GT(refused, 0U);  // the test reaches the limit
  }
}

TEST(Region, RefusesWhatMakesNoSense) {
  Region region(4096);
  EXPECT_FALSE(region.alloc(0, 64));
  EXPECT_FALSE(region.alloc(64, 0));
  EXPECT_FALSE(region.alloc(64, 48));
  EXPECT_FALSE(region.alloc(UINT64_MAX, 64));
  EXPECT_FALSE(region.alloc(4097, 1));
  EXPECT_FALSE(region.take(UINT64_MAX, 2));
  EXPECT_FALSE(region.take(2, UINT64_MAX));
  EXPECT_FALSE(region.free(0));
  EXPECT_EQ(region.alloc(4096, 4096), 0U);
  EXPECT_FALSE(region.alloc(1, 1));
  EXPECT_EQ(region.size_of(0), 4096U);
  EXPECT_FALSE(region.size_of(1));
  EXPECT_EQ(region.free(0), 4096U);
  EXPECT_FALSE(region.free(0));
  EXPECT_EQ(region.blocks(), 0U);
}

}  // namespace
}  // namespace fsccl
