#include "perf/step_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace fsccl::perf {
namespace {

Model model_of(size_t layers) {
  Model model{"test", {{"root", {{"w", {16, 8}}}}}};  // 128 elements
  // Each layer has 35 elements.
  for (size_t l = 0; l < layers; l++)
    model.units.push_back({"layer" + std::to_string(l), {{"w", {4, 8}}, {"b", {3}}}});
  return model;
}

StepShape shape_of(const Model& model, int ranks) {
  StepShape shape;
  shape.ranks = ranks;
  shape.kept.assign(model.units.size(), false);
  return shape;
}

// Checks that each event is allowed for its unit at that point. The order must be valid for every
// number of units, as the library would refuse a wrong one.
TEST(MakeStep, EveryUnitLivesItsLife) {
  for (int i = 0; i < 24; i++) {
    const int prefetch = i % 2;
    const size_t units = 1 + static_cast<size_t>(i) / 4, stays = i / 2 % 2 ? units - 1 : 0;
    std::vector<bool> gathered(units), ready(units), gradients(units), reduced(units);
    size_t most = 0;
    for (const StepEvent& event : make_step(units, prefetch, stays)) {
      const size_t u = event.unit;
      switch (event.kind) {
        case EventKind::kGather:
          ASSERT_FALSE(gathered[u]);
          gathered[u] = true;
          break;
        case EventKind::kWait:
          ASSERT_TRUE(gathered[u] && !ready[u]);
          ready[u] = true;
          break;
        case EventKind::kGradients:
          ASSERT_TRUE(ready[u] && event.backward);
          gradients[u] = true;
          break;
        case EventKind::kReshard:
          ASSERT_TRUE(ready[u]);
          gathered[u] = ready[u] = false;
          break;
        case EventKind::kReduce:
          ASSERT_TRUE(gradients[u] && !reduced[u] && !gathered[u]);
          reduced[u] = true;
          break;
        default:
          FAIL() << "an event of a parameter";
      }
      most =
          std::max(most, static_cast<size_t>(std::count(gathered.begin(), gathered.end(), true)));
    }
    EXPECT_EQ(std::count(reduced.begin(), reduced.end(), true), static_cast<ptrdiff_t>(units));
    EXPECT_EQ(std::count(gathered.begin(), gathered.end(), true), 0);
    // A root that is unit 0 is gathered beside the units in use and ahead. A root that is the last
    // unit adds none: it is the unit in use where forward ends and backward begins.
    EXPECT_EQ(most, std::min(units, static_cast<size_t>((stays ? 1 : 2) + prefetch))) << units;
  }
}

TEST(MakeStepByParameter, EveryParameterLivesItsLife) {
  for (const int prefetch : {0, 1})
    for (const bool own_head : {false, true})
      for (size_t layers = 0; layers <= 5; layers++) {
        Model model = model_of(layers);
        if (own_head)
          model.units[0].params.insert(model.units[0].params.end(),
                                       {{"norm", {8}}, {"head", {16, 8}}});
        std::vector<std::vector<bool>> there, ready, gradient, reduced;
        for (auto* state : {&there, &ready, &gradient, &reduced})
          for (const ModelUnit& unit : model.units) state->emplace_back(unit.params.size());
        size_t most_gradients = 0;
        for (const StepEvent& event : make_step_by_parameter(model, prefetch)) {
          const size_t u = event.unit, i = event.param, params = model.units[u].params.size();
          switch (event.kind) {
            case EventKind::kGather:
              ASSERT_EQ(std::count(there[u].begin(), there[u].end(), true), 0);
              there[u].assign(params, true);
              break;
            case EventKind::kWait:
              ASSERT_EQ(there[u], std::vector<bool>(params, true));
              ready[u].assign(params, true);
              break;
            case EventKind::kRelease:
              ASSERT_TRUE(ready[u][i] && event.backward);
              there[u][i] = ready[u][i] = false;
              break;
            case EventKind::kReshard:
              there[u].assign(params, false);
              ready[u].assign(params, false);
              break;
            case EventKind::kGradient:
              ASSERT_TRUE((ready[u][i] || (u == 0 && i == 0)) && event.backward && !reduced[u][i]);
              gradient[u][i] = true;
              break;
            case EventKind::kReduceOne:
              ASSERT_TRUE(gradient[u][i]);
              gradient[u][i] = false;
              reduced[u][i] = true;
              break;
            default:
              FAIL() << "an event of a unit's gradients";
          }
          size_t gradients = 0;
          for (const auto& unit : gradient)
            gradients += static_cast<size_t>(std::count(unit.begin(), unit.end(), true));
          most_gradients = std::max(most_gradients, gradients);
        }
        for (size_t u = 0; u < model.units.size(); u++) {
          EXPECT_EQ(reduced[u], std::vector<bool>(model.units[u].params.size(), true));
          EXPECT_EQ(there[u], std::vector<bool>(model.units[u].params.size(), false));
        }
        EXPECT_LE(most_gradients, 2u);
      }
}

// A layer has parameters of 8192 and 4096 bytes, the root two of 4096. By parameter, the bound is
// two layers and the gradients of both parameters of one layer. The gradient of the embedding is
// alone at the end, so it adds nothing.
TEST(PlanBound, FallsByParameter) {
  Model model{"test", {{"root", {{"embedding", {32, 64}}, {"head", {32, 64}}}}}};
  for (int l = 0; l < 4; l++) model.units.push_back({"layer", {{"w", {64, 64}}, {"v", {32, 64}}}});
  StepShape shape = shape_of(model, 2);
  EXPECT_EQ(plan_bound_bytes(model, make_step(5, 1), shape), 8192u + 2 * 12288 + 12288);
  EXPECT_EQ(classic_bytes(model, shape, 1), 4u * 12288);
  shape.by_parameter = true;
  const auto events = make_step_by_parameter(model, 1);
  EXPECT_EQ(plan_bound_bytes(model, events, shape), 2 * 12288u + 12288);
  shape.shared = false;  // parameters that are given back make room for gradients
  EXPECT_EQ(plan_bound_bytes(model, events, shape), 2 * 12288u + 8192);
}

TEST(SlotBytes, AlignsParametersOnlyPerParam) {
  const Model model = model_of(1);
  EXPECT_EQ(slot_bytes(model.units[1], false, 2), 128u);  // 64 and 6 bytes
  EXPECT_EQ(slot_bytes(model.units[1], true, 2), 128u);   // 70 bytes
  EXPECT_EQ(slot_bytes(model.units[1], false, 1), 128u);  // 32 and 3 bytes
  EXPECT_EQ(slot_bytes(model.units[1], true, 1), 64u);    // 35 bytes
}

TEST(MinimumBytes, FollowsTheFormula) {
  const Model model = model_of(2);
  StepShape shape = shape_of(model, 4);
  const auto events = make_step(3, 1);
  const uint64_t all = 128 + 2 * 35, again = 2 * 35, reduction = all * (4 * 2 + 4);
  EXPECT_EQ(minimum_bytes(model, events, shape), (all + again) * (4 + 2) + reduction);
  shape.kept = {false, true, true};
  EXPECT_EQ(minimum_bytes(model, events, shape), all * (4 + 2) + reduction);
  shape.kept = {false, false, false};
  shape.shared = false;
  EXPECT_EQ(minimum_bytes(model, events, shape), (all + again) * (4 + 3 * 2 + 4 * 2) + reduction);
}

TEST(LiveBound, CountsSlotsThatAreThereAtOnce) {
  const Model model = model_of(3);
  const uint64_t root = 256, layer = 128;
  StepShape shape = shape_of(model, 4);
  // The peak is at the end, with the root's gradients.
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 0), shape), root + 4 * root);
  // The peak has the root, two layers and a layer's gradients.
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 1), shape_of(model, 1)), root + 3 * layer);
  shape.gradient_slots = false;
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 0), shape), root + layer);
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 1), shape), root + 2 * layer);
  shape.kept = {false, true, true, true};
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 1), shape), root + 3 * layer);
  shape.shared = false;
  EXPECT_EQ(live_bound_bytes(model, make_step(4, 1), shape), 4 * (root + 3 * layer));
}

TEST(LiveBytes, FollowTheEvents) {
  const Model model = model_of(1);  // slots of 256 and 128 bytes
  const StepShape shape = shape_of(model, 2);
  const std::vector<StepEvent> events = make_step(2, 0);
  const std::vector<uint64_t> after = live_bytes(model, events, shape);
  ASSERT_EQ(after.size(), events.size());
  EXPECT_EQ(after.front(), 256u);  // the root is gathered
  EXPECT_EQ(after.back(), 0u);     // nothing is kept
  EXPECT_EQ(*std::max_element(after.begin(), after.end()), live_bound_bytes(model, events, shape));
}

TEST(KeptUnits, FillTheBudgetInOrderAndNeverTakeTheRoot) {
  const Model model = model_of(3);
  EXPECT_EQ(kept_units(model, false, 2, false, UINT64_MAX),
            (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(kept_units(model, false, 2, true, UINT64_MAX),
            (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(kept_units(model, false, 2, true, 256), (std::vector<bool>{false, true, true, false}));
  EXPECT_EQ(kept_units(model, false, 2, true, 127),
            (std::vector<bool>{false, false, false, false}));
}

}  // namespace
}  // namespace fsccl::perf
