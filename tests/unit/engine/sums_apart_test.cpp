// Tests which sums belong to which reduction, and which reduction frees a slot.
#include "engine/sums_apart.h"

#include <gtest/gtest.h>

namespace fsccl {
namespace {

TEST(SumsApart, BelongToTheirReduction) {
  SumsApart apart;
  EXPECT_EQ(apart.sums_of(1), 0u);
  for (uint64_t sums = 1; sums <= 3 * Queue::kRing; sums++) {
    const uint64_t number = 5 * sums;
    apart.add(number, sums, 0);
    EXPECT_EQ(apart.sums_of(number), sums);
    EXPECT_EQ(apart.sums_of(number - 1), 0u) << "another operation";
  }
  // The last Queue::kRing reductions are remembered, which is as many as can be under way.
  const uint64_t last = 3 * Queue::kRing;
  for (uint64_t age = 0; age < Queue::kRing; age++)
    EXPECT_EQ(apart.sums_of(5 * (last - age)), last - age);
  EXPECT_EQ(apart.sums_of(5 * (last - Queue::kRing)), 0u) << "over long ago";
}

TEST(SumsApart, TheFirstReductionInBetweenFrees) {
  SumsApart apart;
  EXPECT_EQ(apart.frees(0, 100), 0u);
  apart.add(11, 1, 20);
  apart.add(12, 2, 30);
  apart.add(13, 3, 0);  // this reduction gives nothing back
  EXPECT_EQ(apart.frees(10, 25), 11u);
  EXPECT_EQ(apart.frees(10, 30), 11u);
  EXPECT_EQ(apart.frees(20, 30), 12u);
  EXPECT_EQ(apart.frees(10, 19), 0u) << "a reshard";
  EXPECT_EQ(apart.frees(30, 100), 0u);
}

TEST(SumsApart, OnlyUnitsGoAhead) {
  EXPECT_TRUE(goes_ahead_of_sums(OpCode::unshard));
  EXPECT_TRUE(goes_ahead_of_sums(OpCode::reduce_grads));
  for (const OpCode op : {OpCode::all_gather, OpCode::barrier, OpCode::broadcast_state,
                          OpCode::pool_create, OpCode::unit_create, OpCode::all_reduce})
    EXPECT_FALSE(goes_ahead_of_sums(op));
}

}  // namespace
}  // namespace fsccl
