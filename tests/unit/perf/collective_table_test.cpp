#include "perf/collective_table.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "perf/machine.h"

namespace fsccl::perf {
namespace {

TEST(Blocks, AreEvenOrDealtThreeToOne) {
  const Blocks even = even_blocks(3, 8);
  EXPECT_EQ(even.counts, (std::vector<size_t>{8, 8, 8}));
  EXPECT_EQ(even.displacements, (std::vector<size_t>{0, 8, 16}));
  EXPECT_EQ(even.total(), 24u);
  EXPECT_EQ(uneven_blocks(4, 8).counts, (std::vector<size_t>{12, 4, 12, 4}));
  EXPECT_EQ(uneven_blocks(3, 8).counts, (std::vector<size_t>{12, 4, 8}));
  EXPECT_EQ(uneven_blocks(2, 7).displacements, (std::vector<size_t>{0, 10}));
  for (int ranks = 1; ranks <= 9; ranks++)
    for (size_t count : {0, 1, 5, 64})
      EXPECT_EQ(uneven_blocks(ranks, count).total(), count * static_cast<size_t>(ranks));
}

TEST(CollectiveKinds, AreFoundByNameOnce) {
  std::set<std::string> names;
  for (const CollectiveKind& kind : collective_kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_EQ(find_collective(kind.name), &kind);
  }
  EXPECT_EQ(find_collective("shuffle"), nullptr);
}

// The factors are those of PERFORMANCE.md of nccl-tests.
TEST(BusFactor, IsThatOfNcclTests) {
  const auto factor = [](const char* name) { return find_collective(name)->bus_factor(4); };
  EXPECT_DOUBLE_EQ(factor("all_reduce"), 1.5);
  for (const char* name : {"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"})
    EXPECT_DOUBLE_EQ(factor(name), 0.75) << name;
  for (const char* name : {"broadcast", "reduce", "send_recv"})
    EXPECT_DOUBLE_EQ(factor(name), 1) << name;
  EXPECT_EQ(factor("barrier"), 0);
}

// The source of each output element is compared with the collective's definition, written out for 3
// ranks and blocks of 12, 4, 8.
TEST(Source, NamesWriterAndPlace) {
  const Blocks blocks = uneven_blocks(3, 8);
  const Position place{blocks, 1, 3, 2};
  const auto source = [&](const char* name, int block) {
    const Source found = find_collective(name)->source(place, block);
    return std::pair(found.writer, found.first);
  };
  using P = std::pair<int, uint64_t>;
  EXPECT_EQ(source("all_gather", 2), P(2, 0));
  EXPECT_EQ(source("gather", 0), P(0, 0));
  EXPECT_EQ(source("broadcast", 0), P(2, 0));
  EXPECT_EQ(source("scatter", 0), P(2, 12));
  EXPECT_EQ(source("all_to_all", 2), P(2, 12));
  EXPECT_EQ(source("all_to_all_v", 0), P(0, 12));
  EXPECT_EQ(source("send_recv", 0), P(0, 0));
  EXPECT_EQ(source("reduce_scatter", 0).second, 12u);
  EXPECT_EQ(source("all_reduce", 0).second, 0u);
}

TEST(Extent, CountsElements) {
  const Blocks blocks = uneven_blocks(3, 8);
  const Position place{blocks, 1, 3, 0};
  EXPECT_EQ(extent_elements(Extent::kNone, place), 0u);
  EXPECT_EQ(extent_elements(Extent::kOwn, place), 4u);
  EXPECT_EQ(extent_elements(Extent::kAll, place), 24u);
  EXPECT_EQ(extent_elements(Extent::kOwnOfEach, place), 12u);
}

TEST(LimitRate, CopiesWhatIsWrittenAndReadsTheRest) {
  const MachineLimit machine{4096, 20, 40};
  EXPECT_DOUBLE_EQ(limit_rate(machine, 1, 1), 20);
  EXPECT_DOUBLE_EQ(limit_rate(machine, 2, 2), 10);
  EXPECT_DOUBLE_EQ(limit_rate(machine, 3, 1), 10);  // 1/20 + 2/40
  EXPECT_DOUBLE_EQ(limit_rate(machine, 1, 2), 10);
  EXPECT_EQ(limit_rate(machine, 0, 0), 0);
}

}  // namespace
}  // namespace fsccl::perf
