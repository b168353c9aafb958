// Tests forecasts of models with frozen parameters, as of fine-tuning with adapters.
#include <algorithm>

#include "fixtures.h"

namespace fsccl::forecast {
namespace {

// Returns kSmall with a frozen root and `all_frozen` frozen layers. With `adapters` the parameters
// of the other layers are frozen, too, and these layers have two small ones that are trained.
nlohmann::json with_frozen(int all_frozen, bool adapters) {
  nlohmann::json model = nlohmann::json::parse(kSmall);
  nlohmann::json layers = model["units"][1]["units"][0];
  for (nlohmann::json& param : model["units"][0]["params"]) param.push_back("frozen");
  nlohmann::json units = {model["units"][0]};
  for (int layer = 0; layer < 12; layer++) {
    nlohmann::json unit = layers;
    unit["name"] = "layers." + std::to_string(layer);
    if (layer < all_frozen || adapters)
      for (nlohmann::json& param : unit["params"]) param.push_back("frozen");
    if (layer >= all_frozen && adapters) {
      unit["params"].push_back({"q_proj.lora_a", {8, 1024}});
      unit["params"].push_back({"q_proj.lora_b", {1024, 8}});
    }
    units.push_back(unit);
  }
  model["units"] = units;
  return model;
}

Forecast run_on_8(Forecaster& forecaster, StepConfig setup = {}) {
  setup.ranks = 8;
  Result<Forecast> forecast = forecaster.run(setup);
  EXPECT_TRUE(forecast.ok()) << (forecast.ok() ? "" : forecast.status().text());
  return forecast.take();
}

TEST(Frozen, OnlyWhatIsTrainedHasGradientsAndStates) {
  Forecaster all(model_of(kSmall), machine_of(kGpus)),
      adapters(model_of(with_frozen(0, true).dump().c_str()), machine_of(kGpus));
  const uint64_t trained = 12 * 2 * 8 * 1024;
  EXPECT_EQ(all.model().trained_elements(), all.model().elements());
  EXPECT_EQ(adapters.model().trained_elements(), trained);
  EXPECT_EQ(adapters.model().elements(), all.model().elements() + trained);
  for (const bool by_parameter : {false, true}) {
    StepConfig setup;
    setup.by_parameter = by_parameter;
    const Memory whole = run_on_8(all, setup).memory;
    const Memory few = run_on_8(adapters, setup).memory;
    EXPECT_GT(few.shards, whole.shards);
    EXPECT_EQ(few.sharded_gradients, trained / 8 * sizeof(float));
    EXPECT_EQ(few.optimizer, trained / 8 * 8);
    EXPECT_GT(few.gradient_slots, 0u);
    EXPECT_LT(few.gradient_slots, whole.gradient_slots / 50);
    EXPECT_GE(few.parameter_slots, whole.parameter_slots);
  }
}

TEST(Frozen, BackwardPassesOnlyTheGradientsOfInputs) {
  const Model all = model_of(kSmall), adapters = model_of(with_frozen(0, true).dump().c_str());
  EXPECT_DOUBLE_EQ(all.backward_flops(4096), 2 * all.forward_flops(4096));
  EXPECT_GT(adapters.backward_flops(4096), adapters.forward_flops(4096));
  EXPECT_LT(adapters.backward_flops(4096), 1.6 * adapters.forward_flops(4096));
  Forecaster forecaster(adapters, machine_of(kGpus));
  const Forecast forecast = run_on_8(forecaster);
  for (size_t u = 1; u < forecast.units.size(); u++) {
    EXPECT_GT(forecast.units[u].price.reduce.ns, 0);
    EXPECT_LT(forecast.units[u].price.reduce.within_bytes,
              forecast.units[u].price.gather.within_bytes / 50);
  }
  EXPECT_EQ(forecast.units[0].price.reduce.ns, 0);
}

// Layers before the first one that is trained have neither a backward pass nor activations.
TEST(Frozen, TheBackwardPassEndsAtTheFirstTrainedLayer) {
  for (const bool by_parameter : {false, true})
    for (const int prefetch : {0, 1, 3}) {
      const Model model = model_of(with_frozen(8, false).dump().c_str());
      const std::vector<Event> events = step_events(model, prefetch, by_parameter);
      for (size_t u = 1; u < model.units.size(); u++) {
        const auto count = [&](EventKind kind, bool backward) {
          return std::count_if(events.begin(), events.end(), [&](const Event& event) {
            return event.kind == kind && event.unit == u && event.backward == backward;
          });
        };
        const bool trained = u >= 9;
        EXPECT_EQ(count(EventKind::compute, false), 1) << u;
        EXPECT_EQ(count(EventKind::gather, true), trained) << u;
        EXPECT_EQ(count(EventKind::compute, true), trained) << u;
        EXPECT_EQ(count(EventKind::reduce, true), trained ? (by_parameter ? 7 : 1) : 0) << u;
        EXPECT_EQ(count(EventKind::gradients, true), count(EventKind::reduce, true)) << u;
      }
      EXPECT_TRUE(std::none_of(events.begin(), events.end(), [](const Event& event) {
        return event.unit == 0 && event.kind == EventKind::reduce;
      }));
    }
  Forecaster few(model_of(with_frozen(8, false).dump().c_str()), machine_of(kGpus)),
      all(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  const Activations of_few = activations_of(few.model(), setup);
  EXPECT_EQ(of_few.kept[8], 0);
  EXPECT_GT(of_few.kept[9], 0);
  EXPECT_LT(run_on_8(few).memory.activations, run_on_8(all).memory.activations);
  EXPECT_LT(run_on_8(few).line.compute_ns, 0.7 * run_on_8(all).line.compute_ns);
  setup.keep_bytes = uint64_t{1} << 40;
  const std::vector<bool> kept = run_on_8(few, setup).kept;
  EXPECT_FALSE(kept[8]);
  EXPECT_TRUE(kept[9]);
}

// The backward pass of a model whose first unit is a layer ends at the first layer that is trained,
// which may be that first unit.
TEST(Frozen, TheFirstLayerOfAModelWithoutARootIsALayer) {
  for (const size_t trained : {0, 3}) {
    nlohmann::json model = with_frozen(12, false);
    model["units"].erase(0);
    model["units"][trained] = nlohmann::json::parse(kSmall)["units"][1]["units"][0];
    model["units"][trained]["name"] = "layers." + std::to_string(trained);
    const Model probe = model_of(model.dump().c_str());
    EXPECT_EQ(probe.first_trained(), trained);
    std::vector<size_t> expected;
    for (size_t u = probe.units.size(); u-- > trained;) expected.push_back(u);
    for (const int prefetch : {0, 1, 2}) {
      std::vector<size_t> backward;
      for (const Event& event : step_events(probe, prefetch, false))
        if (event.kind == EventKind::compute && event.backward) backward.push_back(event.unit);
      EXPECT_EQ(backward, expected) << prefetch;
    }
    const std::vector<double> flops = probe.backward_flops_by_unit(4096);
    const Activations kept = activations_of(probe, StepConfig());
    for (size_t u = 0; u < probe.units.size(); u++) {
      EXPECT_EQ(flops[u] > 0, u >= trained) << u;
      EXPECT_EQ(kept.kept[u] > 0, u >= trained) << u;
    }
  }
}

// Only the head is trained, so no layer has a backward pass.
TEST(Frozen, TheHeadComesBehindAllLayers) {
  nlohmann::json model = with_frozen(12, false);
  model["units"][0]["params"][2].erase(2);  // the head's "frozen"
  const Model probe = model_of(model.dump().c_str());
  EXPECT_EQ(probe.first_trained(), probe.units.size());
  for (const bool by_parameter : {false, true})
    for (const Event& event : step_events(probe, 1, by_parameter)) {
      EXPECT_TRUE(!event.backward || event.unit == 0);
      if (event.kind == EventKind::reduce && by_parameter) {
        EXPECT_EQ(event.param, 2u);
      }
    }
  Forecaster forecaster(probe, machine_of(kGpus)), all(model_of(kSmall), machine_of(kGpus));
  const Forecast forecast = run_on_8(forecaster);
  EXPECT_GT(forecast.units[0].price.reduce.ns, 0);
  EXPECT_LT(forecast.line.compute_ns, 0.6 * run_on_8(all).line.compute_ns);
  // An embedding that is trained comes before all layers, so these have a backward pass.
  model["units"][0]["params"][0].erase(2);
  EXPECT_EQ(model_of(model.dump().c_str()).first_trained(), 0u);
}

// A flat layout cuts a unit as a whole, so one rank may hold all that is trained.
TEST(Frozen, TheRankThatHoldsMostOfWhatIsTrainedCounts) {
  const char* const text = R"({"name": "m", "units": [{"name": "root", "params": [
    ["a.weight", [64, 64], "frozen"], ["b.weight", [64, 64]]]}]})";
  Forecaster forecaster(model_of(text), machine_of(kGpus));
  for (const auto& [layout, share] :
       {std::pair(FSCCL_LAYOUT_FLAT, 1), std::pair(FSCCL_LAYOUT_PER_PARAM, 2)}) {
    StepConfig setup;
    setup.ranks = 2;
    setup.layout = layout;
    const Result<Forecast> forecast = forecaster.run(setup);
    ASSERT_TRUE(forecast.ok()) << forecast.status().text();
    const auto held = static_cast<uint64_t>(64 * 64 / share);
    EXPECT_EQ(forecast.value().memory.sharded_gradients, held * sizeof(float));
  }
}

// Plans over several hosts, and of ragged and flat layouts, leave frozen parameters out as well.
TEST(Frozen, AnyLayoutAndHosts) {
  Forecaster forecaster(model_of(with_frozen(0, true).dump().c_str()), machine_of(kHosts));
  Forecaster whole(model_of(kSmall), machine_of(kHosts));
  for (const fsccl_layout_t layout :
       {FSCCL_LAYOUT_FLAT, FSCCL_LAYOUT_PER_PARAM, FSCCL_LAYOUT_RAGGED})
    for (const int ranks : {1, 8, 16, 64}) {
      StepConfig setup;
      setup.ranks = ranks;
      setup.layout = layout;
      const Forecast few = forecaster.run(setup).take(), all = whole.run(setup).take();
      EXPECT_LT(few.units[1].price.reduce.ns, all.units[1].price.reduce.ns) << ranks;
      EXPECT_GE(few.units[1].price.gather.ns, all.units[1].price.gather.ns) << ranks;
    }
}

TEST(Frozen, WhatIsWrongIsSaid) {
  const auto said = [](const char* params) {
    const Result<Model> model =
        read_model(value_of(fmt::format(
                       R"({{"name": "m", "units": [{{"name": "a", "params": {}}}]}})", params)),
                   0, 2);
    return model.ok() ? std::string("fine") : model.status().text();
  };
  EXPECT_EQ(said(R"([["w", [8, 8]], ["v", [8], "frozen"]])"), "fine");
  EXPECT_NE(said(R"([["w", [8, 8], "frozen"]])").find("all parameters are frozen"),
            std::string::npos);
  EXPECT_NE(said(R"([["w", [8, 8], "cold"]])").find("may have \"frozen\" behind it"),
            std::string::npos);
  EXPECT_NE(said(R"([["w", [8, 8], true]])").find("may have \"frozen\" behind it"),
            std::string::npos);
}

}  // namespace
}  // namespace fsccl::forecast
