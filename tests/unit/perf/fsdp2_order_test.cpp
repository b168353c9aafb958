#include "perf/pool/fsdp2_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace fsccl::perf {
namespace {

constexpr uint64_t kOrderMiB = uint64_t{1} << 20;

// Three units of one parameter of 30 M elements, and no padding: 60 MiB gathered, 60 copied out, 60
// of gradients, 120 to reduce.
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
  // The peak has the root's parameters, those of b, its gradients, and the reduction of c under
  // way.
  EXPECT_EQ(most, (60 + 60 + 60 + 120) * kOrderMiB);
}

TEST(Fsdp2Order, ParametersArePaddedToWholeRowsOfEachRank) {
  Model model = three_units();
  model.units.resize(1);
  const auto step = fsdp2_step(model, 7, 2, {false});
  ASSERT_GE(step.size(), 2u);
  EXPECT_EQ(step[0].bytes, 35 * 2 * kOrderMiB);  // 5 rows each
  EXPECT_EQ(step[1].bytes, 35 * 2 * kOrderMiB);
}

TEST(Fsdp2Order, WhatIsKeptIsNotGatheredAgain) {
  const Model model = three_units();
  const auto takes = [&](std::vector<bool> kept) {
    const auto step = fsdp2_step(model, 2, 2, kept);
    return std::count_if(step.begin(), step.end(), [](const auto& event) { return event.takes(); });
  };
  // gathered and copied out, of two
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
