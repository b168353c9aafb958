#include "allocators/placement/block_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace fsccl {
namespace {

using ::testing::HasSubstr;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kStrayWrites = false;  // the sanitizer ends the program at the first
#else
constexpr bool kStrayWrites = true;
#endif

class Watch : public ::testing::Test {
 protected:
  Block make(uint64_t bytes, uint64_t alignment = 64, uint64_t begin = 0) {
    Block block;
    block.begin = begin;
    block.end = begin + BlockWatch::room(bytes, alignment);
    block.data = watch.place(begin, alignment);
    block.bytes = bytes;
    block.address = memory.data() + block.data;
    block.call = ++calls;
    EXPECT_LE(block.end, memory.size());
    EXPECT_LE(block.data + bytes + BlockWatch::kZone, block.end);
    EXPECT_GE(block.data, begin + alignment);
    watch.given(block);
    return block;
  }
  std::string text(const Status& status) { return status.ok() ? "" : status.text(); }

  std::vector<std::byte> memory{size_t{1} << 17};
  BlockWatch watch{memory.data()};
  uint64_t calls = 0;
};

TEST_F(Watch, EachByteOfTheRedZones) {
  if (!kStrayWrites) GTEST_SKIP();
  for (const uint64_t bytes : {0, 1, 63, 64, 65, 1000}) {
    const Block block = make(bytes);
    std::memset(block.address, 0, bytes);
    EXPECT_TRUE(watch.intact(block).ok());
    for (uint64_t at = block.begin; at < block.end; at++) {
      if (at >= block.data && at < block.data + bytes) continue;
      const std::byte was = std::exchange(memory[at], std::byte(7));
      const bool behind = at >= block.data;
      EXPECT_THAT(
          text(watch.intact(block)),
          HasSubstr(behind ? fmt::format("byte {} behind the end is 0x07", at - block.data - bytes)
                           : fmt::format("byte {} before the begin is 0x07", block.data - at)));
      memory[at] = was;
    }
    EXPECT_TRUE(watch.intact(block).ok());
    watch.freed(block, ++calls);
    EXPECT_TRUE(watch.reuse(block.begin, block.end).ok());
  }
}

TEST_F(Watch, EachFreedByteIsLookedAtOnce) {
  if (!kStrayWrites) GTEST_SKIP();
  for (uint64_t at = 0; at < BlockWatch::room(100, 64); at++) {
    const Block block = make(100);
    watch.freed(block, ++calls);
    memory[at] = std::byte(0);
    // The block's memory is reused in three parts. Only the reuse of the part with the changed byte
    // reports it.
    const uint64_t cuts[] = {0, 64, 192, block.end};
    for (size_t i = 0; i < 3; i++) {
      const bool hit = at >= cuts[i] && at < cuts[i + 1];
      const std::string found = text(watch.reuse(cuts[i], cuts[i + 1]));
      EXPECT_THAT(found, HasSubstr(hit ? "block of 100 bytes" : "")) << at;
      EXPECT_EQ(found.empty(), !hit) << at;
    }
    EXPECT_TRUE(watch.look(0).ok());
    memory[at] = std::byte(0xff);
  }
}

TEST_F(Watch, AnAddressComesAgainWithTheFifthBlockOnly) {
  std::vector<const std::byte*> old;
  for (uint64_t i = 0; i < 2 * BlockWatch::kPlaces; i++) {
    const Block block = make(500);
    if (i < BlockWatch::kPlaces)
      for (const std::byte* address : old) EXPECT_NE(address, block.address);
    else
      EXPECT_EQ(block.address, old[i - BlockWatch::kPlaces]);
    old.push_back(block.address);
    watch.freed(block, ++calls);
    EXPECT_THAT(watch.past_of(block.address), HasSubstr(fmt::format("freed by call {}", calls)));
    EXPECT_THAT(watch.past_of(block.address + 499), HasSubstr("block of 500 bytes"));
    ASSERT_TRUE(watch.reuse(block.begin, block.end).ok());
  }
}

TEST_F(Watch, OnlyTheLastBlocksAreRemembered) {
  const Block first = make(10);
  watch.freed(first, ++calls);
  for (size_t i = 0; i < BlockWatch::kRemembered; i++) {
    EXPECT_NE(watch.past_of(first.address), "");
    const Block block = make(10, 64, 4096);
    watch.freed(block, ++calls);
    ASSERT_TRUE(watch.reuse(block.begin, block.end).ok());
  }
  EXPECT_EQ(watch.past_of(first.address), "");
}

}  // namespace
}  // namespace fsccl
