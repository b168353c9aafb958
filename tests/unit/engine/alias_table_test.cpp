#include "engine/alias_table.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

namespace fsccl {
namespace {

constexpr uint64_t kBytes = 4096;

struct Found {
  bool found = false;
  uint32_t arena = 0;
  uint64_t offset = 0;
};
Found find(const AliasTable& table, uint64_t address, uint64_t bytes) {
  Found result;
  result.found = table.find(address, bytes, &result.arena, &result.offset);
  return result;
}

TEST(AliasTable, FindsWhatLiesWholeInOneRange) {
  const auto table = std::make_unique<AliasTable>();
  EXPECT_FALSE(find(*table, 0x5000, 1).found);
  for (const uint64_t page : {9, 2, 5, 6})
    ASSERT_TRUE(table->add(page * kBytes, kBytes, static_cast<uint32_t>(page), page * 1'000'000));
  for (const uint64_t page : {2, 5, 6, 9}) {
    const Found inside = find(*table, page * kBytes + 100, kBytes - 100);
    EXPECT_TRUE(inside.found);
    EXPECT_EQ(inside.arena, page);
    EXPECT_EQ(inside.offset, page * 1'000'000 + 100);
    EXPECT_TRUE(find(*table, page * kBytes, kBytes).found);
    EXPECT_FALSE(find(*table, page * kBytes, kBytes + 1).found);
    EXPECT_FALSE(find(*table, page * kBytes, UINT64_MAX).found);
  }
  for (const uint64_t page : {0, 1, 3, 4, 7, 8, 10})
    EXPECT_FALSE(find(*table, page * kBytes, 1).found) << page;
  table->remove(5 * kBytes);
  table->remove(3 * kBytes);         // no range begins at this address
  table->remove(6 * kBytes + 2048);  // nor at this one
  EXPECT_FALSE(find(*table, 5 * kBytes, 1).found);
  for (const uint64_t page : {2, 6, 9}) EXPECT_EQ(find(*table, page * kBytes, 1).arena, page);
}

TEST(AliasTable, RefusesWhenItIsFull) {
  const auto table = std::make_unique<AliasTable>();
  for (uint64_t i = 0; i < AliasTable::kCapacity; i++)
    ASSERT_TRUE(table->add((2 * i + 2) * kBytes, kBytes, 1, 0));
  EXPECT_FALSE(table->add(kBytes, kBytes, 1, 0));
  EXPECT_FALSE(find(*table, kBytes, 1).found);
  EXPECT_TRUE(find(*table, 2 * AliasTable::kCapacity * kBytes, kBytes).found);
}

// A range that stays is found, with its own numbers, while its neighbours come and go.
TEST(AliasTable, ReadersSeeWholeEntries) {
  const auto table = std::make_unique<AliasTable>();
  ASSERT_TRUE(table->add(100 * kBytes, kBytes, 77, 4242));
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int i = 0; i < 3000; i++) {
      for (uint64_t page = 90; page < 100; page++)
        table->add(page * kBytes, kBytes, static_cast<uint32_t>(page), page);
      for (uint64_t page = 90; page < 100; page++) table->remove(page * kBytes);
    }
    over = true;
  });
  uint64_t wrong = 0;
  while (!over) {
    const Found stays = find(*table, 100 * kBytes + 8, 8), goes = find(*table, 95 * kBytes + 8, 8);
    wrong += !stays.found || stays.arena != 77 || stays.offset != 4250;
    wrong += goes.found && (goes.arena != 95 || goes.offset != 103);
  }
  writer.join();
  EXPECT_EQ(wrong, 0u);
}

}  // namespace
}  // namespace fsccl
