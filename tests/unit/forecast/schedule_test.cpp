// Tests that the order of a step, and its slots, are those of fsccl-perf step.
#include "forecast/schedule.h"

#include "fixtures.h"
#include "perf/step_schedule.h"

namespace fsccl::forecast {
namespace {

std::vector<std::string> written(const std::vector<perf::StepEvent>& events) {
  std::vector<std::string> words;
  for (const perf::StepEvent& event : events) {
    const char* kind = "";
    bool one = false;
    switch (event.kind) {
      case perf::EventKind::kGather:
        kind = "gather";
        break;
      case perf::EventKind::kWait:
        kind = "wait";
        break;
      case perf::EventKind::kGradients:
        kind = "gradients";
        break;
      case perf::EventKind::kReshard:
        kind = "give_back";
        break;
      case perf::EventKind::kReduce:
        kind = "reduce";
        break;
      case perf::EventKind::kGradient:
        kind = "gradients";
        one = true;
        break;
      case perf::EventKind::kRelease:
        kind = "give_back";
        one = true;
        break;
      case perf::EventKind::kReduceOne:
        kind = "reduce";
        one = true;
        break;
    }
    words.push_back(
        fmt::format("{} {} {}", kind, event.unit, one ? fmt::format("{}", event.param) : "all"));
  }
  return words;
}
std::vector<std::string> written(const std::vector<Event>& events) {
  constexpr std::array kNames{"gather", "wait", "compute", "gradients", "give_back", "reduce"};
  std::vector<std::string> words;
  for (const Event& event : events)
    if (event.kind != EventKind::compute)
      words.push_back(
          fmt::format("{} {} {}", kNames[static_cast<size_t>(event.kind)], event.unit,
                      event.param == Event::kAll ? "all" : fmt::format("{}", event.param)));
  return words;
}

perf::Model as_of_perf(const char* text) {
  std::string error;
  const auto model = perf::parse_model(text, "test", &error);
  EXPECT_TRUE(model) << error;
  return *model;
}

TEST(Schedule, IsThatOfFsccPerfStep) {
  const Model model = model_of(kSmall);
  const perf::Model same = as_of_perf(kSmall);
  for (const int prefetch : {0, 1}) {
    EXPECT_EQ(written(step_events(model, prefetch, false)),
              written(perf::make_step(same.units.size(), prefetch)))
        << prefetch;
    EXPECT_EQ(written(step_events(model, prefetch, true)),
              written(perf::make_step_by_parameter(same, prefetch)))
        << prefetch;
  }
}

TEST(Schedule, EachUnitIsComputedOnceForwardAndOnceBackward) {
  const Model model = model_of(kSmall);
  for (const int prefetch : {0, 1, 2, 3}) {
    std::vector<int> forward(model.units.size()), backward(model.units.size());
    for (const Event& event : step_events(model, prefetch, false))
      if (event.kind == EventKind::compute) (event.backward ? backward : forward)[event.unit]++;
    EXPECT_EQ(forward, std::vector<int>(model.units.size(), 1));
    EXPECT_EQ(backward, std::vector<int>(model.units.size(), 1));
  }
}

// By parameter, a model of one unit and a root of one parameter are visited only once.
TEST(Schedule, NoPassIsLeftOutByParameter) {
  for (
      const char* const text :
      {kSmall,
       R"({"name": "one", "units": [{"name": "block", "params": [["a", [8, 8]], ["b", [8, 8]]]}]})",
       R"({"name": "tied", "units": [{"name": "root", "params": [["embed", [64, 8]]]},
            {"name": "layers.0", "params": [["a", [8, 8]], ["b", [8, 8]]]}]})"}) {
    const Model model = model_of(text);
    for (const int prefetch : {0, 1, 4}) {
      std::vector<int> passes(2 * model.units.size());
      for (const Event& event : step_events(model, prefetch, true))
        if (event.kind == EventKind::compute) passes[2 * event.unit + (event.backward ? 1 : 0)]++;
      EXPECT_EQ(passes, std::vector<int>(passes.size(), 1)) << model.name;
    }
  }
}

TEST(Schedule, PrefetchGathersSoManyAhead) {
  const Model model = model_of(kSmall);
  for (const int prefetch : {1, 2, 3}) {
    size_t gathered = 0, most = 0;
    for (const Event& event : step_events(model, prefetch, false)) {
      if (event.backward) break;
      if (event.kind == EventKind::gather) gathered++;
      if (event.kind == EventKind::compute && event.unit > 0)
        most = std::max(most, gathered - event.unit - 1);
    }
    EXPECT_EQ(most, static_cast<size_t>(prefetch));
  }
}

// The root's operations are those of the head: they come behind the last layer, while the gather of
// the backward pass's first layer is under way. A table of embeddings may be the whole root, and
// the head as well. A first unit that is a layer is no root.
TEST(Schedule, TheHeadIsComputedBetweenThePasses) {
  const std::string layers = R"({"repeat": 3, "first": 0, "units": [{"name": "layers.{}",
      "params": [["a", [8, 8]], ["b", [8, 8]]]}]}]})";
  const std::string tied = R"({"name": "tied", "units": [{"name": "root",
      "params": [["embed", [64, 8]]]},)" +
                           layers,
                    no_root = R"({"name": "no root", "units": [)" + layers;
  const auto order_of = [](const Model& model, int prefetch, bool by_parameter) {
    std::vector<std::pair<size_t, bool>> order;
    for (const Event& event : step_events(model, prefetch, by_parameter))
      if (event.kind == EventKind::compute) order.emplace_back(event.unit, event.backward);
    return order;
  };
  for (const char* text : {kSmall, tied.c_str()}) {
    const Model model = model_of(text);
    std::vector<std::pair<size_t, bool>> expected;
    for (size_t u = 1; u < model.units.size(); u++) expected.emplace_back(u, false);
    expected.emplace_back(0, false);
    expected.emplace_back(0, true);
    for (size_t u = model.units.size() - 1; u > 0; u--) expected.emplace_back(u, true);
    for (const bool by_parameter : {false, true})
      for (const int prefetch : {0, 1, 3})
        EXPECT_EQ(order_of(model, prefetch, by_parameter), expected) << model.name;
  }
  EXPECT_EQ(order_of(model_of(no_root.c_str()), 1, false),
            (std::vector<std::pair<size_t, bool>>{
                {0, false}, {1, false}, {2, false}, {2, true}, {1, true}, {0, true}}));
}

// By parameter a unit is gathered for its next visit only after it was given back for the present
// one.
TEST(Schedule, PrefetchByParameterGathersSoManyAhead) {
  const Model model = model_of(kSmall);
  for (const int prefetch : {1, 2, 4, 8}) {
    size_t most = 0;
    std::vector<bool> there(model.units.size());
    std::vector<int> gathers(model.units.size());
    for (const Event& event : step_events(model, prefetch, true)) {
      if (event.kind == EventKind::gather) {
        EXPECT_FALSE(there[event.unit]) << prefetch;
        there[event.unit] = true, gathers[event.unit]++;
      }
      if (event.kind == EventKind::compute)
        most = std::max<size_t>(most, std::count(there.begin(), there.end(), true) - 1);
      if (event.kind == EventKind::give_back && event.param == Event::kAll)
        there[event.unit] = false;
    }
    EXPECT_EQ(most, static_cast<size_t>(prefetch));
    EXPECT_EQ(gathers, std::vector<int>(model.units.size(), 2));
  }
}

TEST(Schedule, KeepsWhatFits) {
  const Model model = model_of(kSmall);
  std::vector<uint64_t> bytes(model.units.size(), 100);
  EXPECT_EQ(kept_units(model, bytes, 0), std::vector<bool>(model.units.size(), false));
  const std::vector<bool> kept = kept_units(model, bytes, 250);
  EXPECT_EQ(std::count(kept.begin(), kept.end(), true), 2);
  EXPECT_FALSE(kept[0]);  // the root need not be kept, because it stays gathered anyway
}

}  // namespace
}  // namespace fsccl::forecast
