// Tests that a forecast for a hundred thousand ranks takes no more memory and processor time than
// one for eight. Both are counted.
#include <cstdlib>
#include <ctime>
#include <new>

#include "fixtures.h"
#include "forecast/report.h"
#include "forecast/search.h"
#include "forecast/startup.h"
#include "plan/collectives.h"
#include "plan/turn.h"

namespace {

thread_local bool counting = false;
thread_local int64_t live = 0, most = 0;

// Allocates memory with its size in front, so that it can be counted.
void* counted(std::size_t bytes) {
  auto* const block = static_cast<std::size_t*>(std::malloc(bytes + 2 * sizeof(std::size_t)));
  if (!block) throw std::bad_alloc();
  *block = bytes;
  if (counting) most = std::max(most, live += static_cast<int64_t>(bytes));
  return block + 2;
}
void uncounted(void* pointer) {
  if (!pointer) return;
  auto* const block = static_cast<std::size_t*>(pointer) - 2;
  if (counting) live -= static_cast<int64_t>(*block);
  std::free(block);
}

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(bytes); }
void* operator new[](std::size_t bytes) { return counted(bytes); }
void operator delete(void* pointer) noexcept { uncounted(pointer); }
void operator delete[](void* pointer) noexcept { uncounted(pointer); }
void operator delete(void* pointer, std::size_t) noexcept { uncounted(pointer); }
void operator delete[](void* pointer, std::size_t) noexcept { uncounted(pointer); }

namespace fsccl::forecast {
namespace {

constexpr int kMany = 100'000;

struct Use {
  int64_t bytes = 0;
  double ms = 0;
};
template <class Work>
Use least_of(int times, Work work) {
  Use use{0, 1e9};
  for (int i = 0; i < times; i++) {
    live = most = 0;
    counting = true;
    const double begin = cpu_ms();
    work();
    use.ms = std::min(use.ms, cpu_ms() - begin);
    counting = false;
    use.bytes = std::max(use.bytes, most);
  }
  return use;
}

// The experts of a layer of DeepSeek-V3: 11.3 billion parameters in two matrices.
constexpr const char* kExperts = R"({"name": "experts", "units": [
  {"name": "root", "params": [["norm.weight", [7168]]]},
  {"name": "layers.3.experts", "params": [["experts.gate_up", [256, 4096, 7168]],
    ["experts.down", [256, 7168, 2048]]], "forward_flops": 1e9, "activation_bytes": 1e6}]})";

TEST(Scale, PlansOfAUnitTakeAMebibyteAndFiveMilliseconds) {
  for (const char* units : {kSmall, kExperts}) {
    const Model model = model_of(units);
    for (const char* text : {kHosts, kGpus}) {
      const Machine machine = machine_of(text);
      StepConfig setup;
      setup.ranks = kMany;
      const Use use = least_of(5, [&] {
        const Group group = shard_group(setup, machine);
        const UnitLayout places =
            UnitLayout::make(model.units[1], setup, group, !machine.gpu).take();
        EXPECT_GT(price_unit(places, setup, machine).gather.ns, 0);
      });
      EXPECT_LE(use.bytes, 1 << 20) << model.name << " on " << machine.name;
      EXPECT_LE(use.ms, 5) << model.name << " on " << machine.name;
    }
  }
}

TEST(Scale, AForecastTakesFiveSecondsAndNoMoreMemoryThanAFewHosts) {
  const auto forecast = [](int ranks) {
    return least_of(1, [&] {
      Forecaster forecaster(model_of(kSmall), machine_of(kHosts));
      StepConfig setup;
      setup.ranks = ranks;
      EXPECT_TRUE(forecaster.run(setup).ok());
      EXPECT_TRUE(search(forecaster, setup).ok());
      EXPECT_TRUE(scaling(forecaster, setup).ok());
      EXPECT_GT(startup_of(ranks, forecaster.machine(), 0).take().messages, 0);
    });
  };
  const Use few = forecast(1024), many = forecast(kMany);
  EXPECT_LE(many.ms, 5000);
  EXPECT_LE(many.bytes, few.bytes + few.bytes / 2);
}

// The forecast extrapolates prices from those for 64 and 128 hosts. The test compares them with
// prices of plans for all hosts. There is one rank a host, so a gather is an exchange between hosts
// and a cast.
TEST(Scale, PricesAreThoseOfPlansForAllHosts) {
  nlohmann::json alone = nlohmann::json::parse(kHosts);
  alone["ranks_per_host"] = 1;
  const Machine machine = machine_of(alone.dump().c_str());
  const Model model = model_of(kSmall);
  Costs costs = typical_costs(machine.between);
  costs.apply_to(true, 1);
  for (const int hosts : {100, 200, 512, 2048}) {
    StepConfig setup;
    setup.ranks = hosts;
    const Group group = shard_group(setup, machine);
    const UnitLayout places = UnitLayout::make(model.units[1], setup, group, true).take();
    const double said = price_unit(places, setup, machine).gather.ns;
    const auto plan_of = [&](int rank) {
      Shape shape;
      shape.rank = rank;
      shape.ranks = hosts;
      shape.count = (places.elements + group.ranks - 1) / static_cast<uint64_t>(group.ranks);
      shape.dtype = setup.wire;
      shape.mirrored = true;
      shape.slot_bytes = lane_slot_bytes(group, machine);
      return move_slots(all_gather_movement(shape), turn_bytes(shape.slot_bytes, true, hosts));
    };
    const double exact = price({plan_of(0), plan_of(1)}, costs, false).ns;
    EXPECT_GE(said, 0.97 * exact) << hosts;  // the forecast includes a cast
    EXPECT_LE(said, 1.10 * exact) << hosts;
  }
}

TEST(Scale, StartOfManyRanks) {
  const Machine machine = machine_of(kGpus);
  Startup start;
  const Use use = least_of(1, [&] { start = startup_of(kMany, machine, 0).take(); });
  EXPECT_LE(use.ms, 1000);
  EXPECT_EQ(start.simulated_ranks, kSimulatedRanks);
  EXPECT_EQ(start.depth, 6);
  EXPECT_LE(start.inner_sockets, 20);
  EXPECT_LE(start.leaf_sockets, start.inner_sockets);
  EXPECT_GE(start.meeting_sockets, 512);
  EXPECT_LE(start.meeting_sockets, 540);
  EXPECT_EQ(start.list_bytes, 65.0 * kMany);
  EXPECT_NEAR(static_cast<double>(start.messages), 12.0 * kMany, 10);
  EXPECT_GT(start.ns(), 1e9);
  EXPECT_LT(start.ns(), 1e10);
  EXPECT_EQ(startup_of(1, machine, 0).take().depth, 0);
}

}  // namespace
}  // namespace fsccl::forecast
