// Tests the bytes of a rank, by owner.
#include "forecast/memory.h"

#include "fixtures.h"
#include "perf/step_schedule.h"

namespace fsccl::forecast {
namespace {

Forecast forecast_of(Forecaster& forecaster, const StepConfig& setup) {
  Result<Forecast> forecast = forecaster.run(setup);
  EXPECT_TRUE(forecast.ok()) << (forecast.ok() ? "" : forecast.status().text());
  return forecast.take();
}

TEST(Memory, SlotsAreThoseOfThePlanner) {
  std::string error;
  const perf::Model same = *perf::parse_model(kSmall, "test", &error);
  Forecaster forecaster(model_of(kSmall), machine_of(kHosts));
  for (const bool by_parameter : {false, true})
    for (const int prefetch : {0, 1}) {
      StepConfig setup;
      setup.ranks = 2;
      setup.prefetch = prefetch;
      setup.by_parameter = by_parameter;
      perf::StepShape shape;
      shape.by_parameter = by_parameter;
      shape.kept.assign(same.units.size(), false);
      const auto events = by_parameter ? perf::make_step_by_parameter(same, prefetch)
                                       : perf::make_step(same.units.size(), prefetch);
      const double bound = static_cast<double>(perf::plan_bound_bytes(same, events, shape));
      const Forecast forecast = forecast_of(forecaster, setup);
      const double planned =
          static_cast<double>(forecast.slots.parameters + forecast.slots.gradients);
      EXPECT_GE(planned, bound);  // no plan needs less than the bound
      EXPECT_LE(planned, 1.01 * bound)
          << "prefetch " << prefetch << ", by parameter " << by_parameter;
    }
}

TEST(Memory, OwnersAreWhatTheirTypesSay) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const uint64_t elements = forecaster.model().elements();
  const Forecast forecast = forecast_of(forecaster, setup);
  EXPECT_NEAR(static_cast<double>(forecast.memory.shards), static_cast<double>(elements) * 4 / 8,
              4096);
  EXPECT_EQ(forecast.memory.optimizer, 2 * forecast.memory.shards);
  EXPECT_EQ(forecast.memory.sharded_gradients, forecast.memory.shards);
  setup.shard = setup.sharded_grad = FSCCL_BFLOAT16;
  setup.optimizer_bytes = 4;
  const Forecast half = forecast_of(forecaster, setup);
  EXPECT_EQ(half.memory.shards, forecast.memory.shards / 2);
  EXPECT_EQ(half.memory.optimizer, forecast.memory.optimizer / 2);
}

TEST(Memory, RanksOfAHostShareParametersAndGpusDoNot) {
  Forecaster hosts(model_of(kSmall), machine_of(kHosts)), gpus(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const Forecast shared = forecast_of(hosts, setup), own = forecast_of(gpus, setup);
  EXPECT_EQ(shared.memory.parameter_slots * 8, own.memory.parameter_slots);
  EXPECT_EQ(shared.memory.host_slots, own.memory.parameter_slots);
}

TEST(Memory, KeepingTakesWhatIsKeptAndCheckpointsFreeActivations) {
  Forecaster forecaster(model_of(kSmall), machine_of(kGpus));
  StepConfig setup;
  setup.ranks = 8;
  const Forecast plain = forecast_of(forecaster, setup);
  setup.keep_bytes = uint64_t{1} << 40;
  const Forecast kept = forecast_of(forecaster, setup);
  EXPECT_GE(kept.memory.parameter_slots, forecaster.model().elements() * 2);
  EXPECT_GT(kept.memory.parameter_slots, plain.memory.parameter_slots);
  EXPECT_LT(kept.line.communication_ns, plain.line.communication_ns);
  setup.keep_bytes = 0;
  setup.checkpoint = true;
  const Forecast again = forecast_of(forecaster, setup);
  EXPECT_LT(again.memory.activations, plain.memory.activations / 2);
  EXPECT_GT(again.line.compute_ns, 1.2 * plain.line.compute_ns);
}

}  // namespace
}  // namespace fsccl::forecast
