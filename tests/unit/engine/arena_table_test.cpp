// Tests how arenas are named: by ids that come again when their arenas are gone.
#include "engine/arena_table.h"

#include <gtest/gtest.h>

namespace fsccl {
namespace {

TEST(ArenaTable, KnowsWhichIdsAreTaken) {
  ArenaTable table;
  std::byte memory[2][64];
  EXPECT_FALSE(table.has(20));
  ASSERT_TRUE(table.add(20, memory[0], 64, {0, 1}).ok());
  EXPECT_TRUE(table.has(20));
  const uint64_t before = table.removals();
  table.remove(20);
  EXPECT_FALSE(table.has(20));
  EXPECT_NE(table.removals(), before);  // answers about the id hold no longer
  ASSERT_TRUE(table.add(20, memory[1], 64, {0}).ok());
  EXPECT_FALSE(table.reaches(20, {0, 1}));
}

TEST(ArenaTable, SaysWhetherItHasRoom) {
  ArenaTable table;
  std::byte memory[ArenaTable::kCapacity];
  for (uint32_t i = 0; i < ArenaTable::kCapacity; i++) {
    EXPECT_TRUE(table.check_room().ok());
    ASSERT_TRUE(table.add(kFirstArena + i, memory + i, 1, {0}).ok());
  }
  EXPECT_EQ(table.check_room().code(), FSCCL_ERR_LIMIT);
  EXPECT_EQ(table.add(5000, memory, 1, {0}).code(), FSCCL_ERR_LIMIT);
  table.remove(kFirstArena + 7);
  EXPECT_TRUE(table.check_room().ok());
}

}  // namespace
}  // namespace fsccl
