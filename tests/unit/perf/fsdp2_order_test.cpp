#include "perf/pool/fsdp2_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace fsccl::perf {
namespace {

constexpr uint64_t kOrderMiB = uint64_t{1} << 20;

// Returns three units of one parameter of 30 M elements, without padding. A unit has 60 MiB when it
// is gathered, 60 when it is copied out, 60 of gradients, and 120 for its reduction.
Model three_units() {
  Model model{"m", {}};
  for (const char* name : {"a", "b", "c"}) model.units.push_back({name, {{"w", {30, 1 << 20}}}});
  return model;
}

TEST(Fsdp2Order, MostIsThereWhereAReductionBegins) {
  const Model model = three_units();
  std::map<uint64_t, uint64_t> held;
  uint64_t live = 0, most = 0;
  for (const fsccl::StepEvent& event : fsdp2_step(model, 2, 2, {false, false, false})) {
    if (event.takes()) {
      ASSERT_TRUE(held.emplace(event.key, event.bytes).second) << "taken twice";
      live += event.bytes;
    } else {
      ASSERT_TRUE(held.contains(event.key)) << "given back without having been taken";
      live -= held[event.key];
      held.erase(event.key);
    }
    most = std::max(most, live);
  }
  EXPECT_TRUE(held.empty());
  // At the peak there are the root's parameters, b's parameters and gradients, and the reduction of
  // c, which is under way.
  EXPECT_EQ(most, (60 + 60 + 60 + 120) * kOrderMiB);
}

TEST(Fsdp2Order, ParametersArePaddedToWholeRowsOfEachRank) {
  Model model = three_units();
  model.units.resize(1);
  const auto step = fsdp2_step(model, 7, 2, {false});
  ASSERT_GE(step.size(), 2u);
  EXPECT_EQ(step[0].bytes, 35 * 2 * kOrderMiB);  // 5 rows on each of 7 ranks
  EXPECT_EQ(step[1].bytes, 35 * 2 * kOrderMiB);
}

TEST(Fsdp2Order, WhatIsKeptIsNotGatheredAgain) {
  const Model model = three_units();
  const auto takes = [&](std::vector<bool> kept) {
    const auto step = fsdp2_step(model, 2, 2, kept);
    return std::count_if(step.begin(), step.end(), [](const auto& event) { return event.takes(); });
  };
  // Two units are not gathered again and not copied out again.
  EXPECT_EQ(takes({false, false, false}) - takes({false, true, true}), 4);
}

TEST(Fsdp2Order, TheAllocatorReservesMoreThanIsLive) {
  const auto step = fsdp2_step(three_units(), 2, 2, {false, false, false});
  EXPECT_GE(fsdp2_reserved_bytes(step, false), 300 * kOrderMiB);
  EXPECT_GE(fsdp2_reserved_bytes(step, true), 300 * kOrderMiB);
  EXPECT_LE(fsdp2_reserved_bytes(step, true), 2 * 300 * kOrderMiB);
}

}  // namespace
}  // namespace fsccl::perf
