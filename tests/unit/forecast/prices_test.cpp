// Tests the prices of gathers and reductions of units on GPUs of one host.
#include "fixtures.h"

namespace fsccl::forecast {
namespace {

// Prices a layer of kSmall, whose shards are fp32 and whose slots are bf16, on GPUs.
UnitPrice price_on_gpus(int ranks, const nlohmann::json& changes = {}) {
  nlohmann::json json = nlohmann::json::parse(kGpus);
  if (!changes.is_null()) json.update(changes);
  const Machine machine = machine_of(json.dump().c_str());
  const Model model = model_of(kSmall);
  StepConfig setup;
  setup.ranks = ranks;
  const UnitLayout places =
      UnitLayout::make(model.units[1], setup, shard_group(setup, machine), false).take();
  return price_unit(places, setup, machine);
}
double elements_of_layer() {
  const Model model = model_of(kSmall);
  return static_cast<double>(model.units[1].elements());
}

// A gather of one rank reads its fp32 shards and writes its slots. A reduction reads the slots and
// writes the sharded gradients.
TEST(Prices, OneGpuCopiesAtTheRateOfItsMemory) {
  constexpr double kMemory = 3350;
  const UnitPrice alone = price_on_gpus(1);
  const double copied = elements_of_layer() * (4 + 2) / kMemory;
  EXPECT_NEAR(alone.gather.ns, copied, 0.01 * copied);
  EXPECT_NEAR(alone.reduce.ns, copied, 0.01 * copied);
  EXPECT_DOUBLE_EQ(price_on_gpus(1, {{"within", {{"gb_per_s", 10}}}}).gather.ns, alone.gather.ns);
  EXPECT_DOUBLE_EQ(price_on_gpus(1, {{"memory_gb_per_s", 335}}).gather.ns, 10 * alone.gather.ns);
}

// Each of 8 ranks pulls seven eighths of a slot over its link, and casts its own eighth.
TEST(Prices, TheLinkCarriesOnlyWhatIsOfPeers) {
  constexpr double kMemory = 3350, kLink = 450, kSignals = 20'000;
  const double n = elements_of_layer(), pulled = 2 * n * 7 / 8 / kLink,
               own = (4 + 2) * n / 8 / kMemory;
  const UnitPrice eight = price_on_gpus(8);
  EXPECT_GT(eight.gather.ns, pulled + own);
  EXPECT_LT(eight.gather.ns, pulled + own + kSignals);
  EXPECT_GT(eight.reduce.ns, pulled + own);
  EXPECT_LT(eight.reduce.ns, pulled + own + kSignals);
}

// A measured time of a byte is that of all bytes, own and others.
TEST(Prices, MeasuredPassesIncludeTheOwnPart) {
  const nlohmann::json measured = {{"measured",
                                    {{"exchange_ns", 300},
                                     {"slots_ns", {60, 250, 11000}},
                                     {"copy_ns_per_kib", 100},
                                     {"gather_ns_per_kib", 200}}}};
  const UnitPrice alone = price_on_gpus(1, measured);
  const double copied = elements_of_layer() * (4 + 2) * 200 / 1024;
  EXPECT_NEAR(alone.gather.ns, copied, 0.01 * copied);
}

}  // namespace
}  // namespace fsccl::forecast
