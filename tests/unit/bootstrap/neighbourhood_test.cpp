// Tests the neighbours of a rank on a host, and in the tree.
#include "bootstrap/neighbourhood.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <numeric>
#include <set>

namespace fsccl {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

// Makes ranks on these hosts and in these processes: each place has the numbers of both.
std::vector<Member> members_of(const std::vector<std::pair<uint64_t, int32_t>>& places) {
  std::vector<Member> members;
  for (const auto& [host, pid] : places) members.push_back({host, pid, 0, 1});
  return members;
}

std::vector<int32_t> in_order(size_t ranks) {
  std::vector<int32_t> arrivals(ranks);
  std::iota(arrivals.begin(), arrivals.end(), 0);
  return arrivals;
}

TEST(Neighbourhood, TheRanksOfAHostStandInARing) {
  const std::vector<Member> members =
      members_of({{7, 1}, {9, 2}, {7, 3}, {7, 4}, {9, 5}, {7, 6}, {8, 7}});
  const Neighbourhood where(members, in_order(members.size()));
  EXPECT_EQ(where.hosts(), 3u);
  EXPECT_THAT(where.mates(3), ElementsAre(0, 2, 3, 5));
  EXPECT_EQ(where.line_of(3), 2u);
  EXPECT_THAT(where.beside(3), ElementsAre(5, 2));
  EXPECT_THAT(where.beside(0), ElementsAre(2, 5));
  EXPECT_THAT(where.beside(1), ElementsAre(4, 4));
  EXPECT_THAT(where.beside(6), IsEmpty());
  EXPECT_TRUE(where.far(0, 1));
  EXPECT_FALSE(where.far(0, 5));
}

// Ranks of one process are stopped together, so only another process can report them silent.
TEST(Neighbourhood, BesideARankIsAlsoSomebodyOfAnotherProcess) {
  const std::vector<Member> members = members_of({{7, 1}, {7, 1}, {7, 1}, {7, 2}, {7, 2}});
  const Neighbourhood where(members, in_order(members.size()));
  EXPECT_THAT(where.beside(1), ElementsAre(2, 3, 0, 4));
  EXPECT_THAT(where.beside(3), ElementsAre(4, 0, 2));
  const std::vector<Member> alone = members_of({{7, 1}, {7, 1}});
  EXPECT_THAT(Neighbourhood(alone, in_order(2)).beside(0), ElementsAre(1, 1));
}

TEST(Neighbourhood, TheTreeIsThatOfArrival) {
  std::vector<int32_t> arrivals = in_order(20);
  std::reverse(arrivals.begin(), arrivals.end());
  const std::vector<Member> members =
      members_of(std::vector<std::pair<uint64_t, int32_t>>(20, {7, 1}));
  const Neighbourhood where(members, arrivals);
  EXPECT_THAT(where.in_tree(19), UnorderedElementsAre(11, 12, 13, 14, 15, 16, 17, 18));
  EXPECT_THAT(where.in_tree(17), UnorderedElementsAre(19, 0, 1, 2));
  EXPECT_THAT(where.in_tree(0), UnorderedElementsAre(17));
}

// Each rank is watched by several others, and 512 ranks do not watch each other in 512 x 512 pairs.
TEST(Neighbourhood, RanksShareTheLooksAtEachOther) {
  EXPECT_THAT(share_of_looks(0, 1), IsEmpty());
  EXPECT_THAT(share_of_looks(1, 2), ElementsAre(0u));
  EXPECT_THAT(share_of_looks(3, 5), ElementsAre(4u, 0u, 2u));
  for (const size_t ranks : {2u, 3u, 7u, 64u, 511u, 512u}) {
    const size_t looks = share_of_looks(0, ranks).size();
    EXPECT_EQ(looks, static_cast<size_t>(std::bit_width(ranks - 1)));
    std::vector<std::set<size_t>> lookers(ranks);
    for (size_t place = 0; place < ranks; place++)
      for (const size_t at : share_of_looks(place, ranks)) lookers[at].insert(place);
    for (size_t place = 0; place < ranks; place++) {
      EXPECT_EQ(lookers[place].size(), looks);
      EXPECT_FALSE(lookers[place].contains(place));
    }
  }
}

}  // namespace
}  // namespace fsccl
