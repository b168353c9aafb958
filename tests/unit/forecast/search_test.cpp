// Tests which setups a search finds, and how it ranks them.
#include "forecast/search.h"

#include <algorithm>
#include <set>

#include "fixtures.h"

namespace fsccl::forecast {
namespace {

TEST(Search, RanksWhatFitsByTime) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 64;
  const std::vector<Choice> all = search(forecaster, setup).take();
  const auto [least, most] = std::minmax_element(
      all.begin(), all.end(), [](auto& a, auto& b) { return a.memory < b.memory; });
  setup.memory_limit = (least->memory + most->memory) / 2;
  const std::vector<Choice> choices = search(forecaster, setup).take();
  ASSERT_GT(choices.size(), 20u);
  EXPECT_TRUE(choices.front().fits);
  EXPECT_FALSE(choices.back().fits);
  for (size_t i = 1; i < choices.size(); i++) {
    EXPECT_GE(choices[i - 1].fits, choices[i].fits);
    EXPECT_TRUE(!choices[i].fits || choices[i - 1].step_ns <= 1.002 * choices[i].step_ns);
  }
}

// A model of one element has neither a half nor quarters that could be kept.
TEST(Search, TriesEachSetupOnce) {
  Forecaster forecaster(
      model_of(R"({"name": "one", "units": [{"name": "root", "params": [["w", [1, 1]]]}]})"),
      machine_of(kHosts));
  StepConfig setup;
  setup.ranks = 8;
  const std::vector<Choice> choices = search(forecaster, setup).take();
  for (const Choice& one : choices)
    EXPECT_EQ(std::count_if(choices.begin(), choices.end(),
                            [&](const Choice& other) { return alike(one.setup, other.setup); }),
              1);
}

// Kept bytes fill what is left of the memory, whatever part of the model that is, and degrees are
// tried that only lie beside the best one.
TEST(Search, GoesOnToTheNeighboursOfTheBest) {
  const Model model = model_of(kSmall);
  Forecaster forecaster(model, machine_of(kHosts));
  StepConfig setup;
  setup.ranks = 8;
  setup.checkpoint = Checkpoint::full;
  const Forecast without = forecaster.run(setup).take();
  const uint64_t unit = model.units[1].elements() * dtype_size(setup.wire);
  setup.memory_limit = without.memory.total() + unit / 8 * 7;
  const auto kept = [&](const Choice& choice) { return choice.setup.keep_bytes; };
  const std::vector<Choice> choices = search(forecaster, setup).take();
  EXPECT_TRUE(std::any_of(choices.begin(), choices.end(), [&](const Choice& one) {
    return one.fits && kept(one) > 0 && kept(one) % (model.elements() / 2) != 0;
  }));
  setup.memory_limit = 0;
  setup.ranks = 8 * 6;
  std::set<int> degrees;
  for (const Choice& one : search(forecaster, setup).take()) degrees.insert(one.setup.shared_by());
  EXPECT_TRUE(degrees.contains(24) || degrees.contains(16) || degrees.contains(4))
      << *degrees.begin();
}

// A few of the 20 degrees of 5000 ranks on hosts of 8 are much better than the others.
TEST(Search, FindsTheBestOfAllDegrees) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 5000;
  double best_ns = 1e18;
  for (int degree = 1; degree <= setup.ranks; degree++) {
    if (setup.ranks % degree != 0) continue;
    StepConfig one = setup;
    one.shard_over = degree;
    one.keep_bytes = forecaster.model().elements() * dtype_size(setup.wire);
    if (!forecaster.misfit(one).empty()) continue;
    const Forecast forecast = forecaster.run(one).take();
    if (forecast.fits()) best_ns = std::min(best_ns, forecast.line.step_ns);
  }
  const auto found_ns = [&] { return search(forecaster, setup).take().front().step_ns; };
  EXPECT_LE(found_ns(), 1.001 * best_ns);
  // With so many sizes of micro-batches, not all degrees are tried with each of them.
  setup.batch = 1 << 12;
  setup.accumulate = 4;
  setup.sequence = 1;
  const double halves_ns = found_ns();
  for (const int degree : {40, 200, 1000}) {
    setup.shard_over = degree;
    EXPECT_LE(halves_ns, 1.002 * forecaster.run(setup).take().line.step_ns) << degree;
  }
}

}  // namespace
}  // namespace fsccl::forecast
