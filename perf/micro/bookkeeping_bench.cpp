// Measures what a step costs apart from moving its bytes: taking and giving back slots of a planned
// pool, the planner itself, the plans of a unit, and the checks of an operation.
#include <benchmark/benchmark.h>

#include <cstring>

#include "allocators/placement/collective_region.h"
#include "base/hash.h"
#include "fsccl/transport.h"
#include "plan/fingerprint.h"
#include "plan/unit_plans.h"
#include "record/recorder.h"

namespace {

using namespace fsccl;

// A unit's key plus this number is the key of its gradient slot.
constexpr uint64_t kGradient = uint64_t{1} << 32;
constexpr uint64_t kUnitBytes = uint64_t{128} << 20;

// Returns a step with prefetch, in which two units are live at once, and the gradients of one.
std::vector<StepEvent> step_of(uint64_t units) {
  std::vector<StepEvent> events;
  const auto take = [&](uint64_t key, bool stable) {
    events.push_back({.stable = stable, .key = key, .bytes = kUnitBytes});
  };
  const auto give = [&](uint64_t key) { events.push_back({.op = StepOp::kGiveBack, .key = key}); };
  take(0, true);
  for (uint64_t u = 0; u < units; u++) {
    if (u + 1 < units) take(u + 1, true);
    give(u);
  }
  take(units - 1, true);
  for (uint64_t u = units; u-- > 0;) {
    take(kGradient + u, false);
    if (u > 0) take(u - 1, true);
    give(u);
    give(kGradient + u);
  }
  return events;
}

bool run_step(CollectiveRegion& region, const std::vector<StepEvent>& events, uint64_t* position) {
  bool good = true;
  for (const StepEvent& event : events)
    good &= event.takes() ? region.take(event.key, event.bytes, event.stable, ++*position).ok()
                          : region.give_back(event.key, ++*position).ok();
  region.end_step();
  return good;
}

void planned_step(benchmark::State& state) {
  const std::vector<StepEvent> events = step_of(static_cast<uint64_t>(state.range(0)));
  CollectiveRegion region(uint64_t{1} << 44, true);
  uint64_t position = 0;
  for (int warmup = 0; warmup < 2; warmup++) run_step(region, events, &position);
  for (auto _ : state)
    if (!run_step(region, events, &position)) return state.SkipWithError("a slot was refused");
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(events.size()));
}

void plan_a_step(benchmark::State& state) {
  const std::vector<StepEvent> events = step_of(static_cast<uint64_t>(state.range(0)));
  for (auto _ : state)
    benchmark::DoNotOptimize(plan_step(events, {}, CollectiveRegion::kAlignment));
}

// Returns the shape of a unit with the parameters of a transformer layer.
UnitShape shape_of(const Layout& layout, fsccl_dtype_t slot_dtype) {
  UnitShape shape;
  shape.layout = &layout;
  shape.shard_dtype.assign(layout.size(), FSCCL_FLOAT32);
  shape.slot_dtype.assign(layout.size(), slot_dtype);
  shape.grad_dtype.assign(layout.size(), FSCCL_FLOAT32);
  shape.slot = make_slot_map(layout, std::vector<size_t>(layout.size(), dtype_size(slot_dtype)));
  return shape;
}

template <Plan (*kMake)(const UnitShape&)>
void build_plan(benchmark::State& state) {
  std::vector<ParamShape> params(9);
  for (ParamShape& param : params) param.dims = {4096, 4096};
  Result<Layout> layout =
      Layout::make(FSCCL_LAYOUT_PER_PARAM, params, static_cast<int>(state.range(0)));
  if (!layout.ok()) return state.SkipWithError("no layout");
  const UnitShape shape = shape_of(layout.value(), FSCCL_BFLOAT16);
  for (auto _ : state) benchmark::DoNotOptimize(kMake(shape));
}

void lay_out(benchmark::State& state) {
  std::vector<ParamShape> params(9);
  for (ParamShape& param : params) param.dims = {4096, 4096};
  for (auto _ : state)
    benchmark::DoNotOptimize(
        Layout::make(FSCCL_LAYOUT_PER_PARAM, params, static_cast<int>(state.range(0))));
}

void compare_fingerprints(benchmark::State& state) {
  Fingerprint mine, theirs;
  for (auto _ : state) {
    mine.history = theirs.history = mix_hash(mine.history, ++mine.sequence);
    theirs.sequence = mine.sequence;
    benchmark::DoNotOptimize(equal(mine, &theirs));
  }
}

void flight_recorder_event(benchmark::State& state) {
  const auto made = Recorder::create({"", 4096, 1, 0, 1});
  if (!made.ok()) return state.SkipWithError("no recorder");
  Fingerprint what;
  for (auto _ : state) {
    what.sequence++;
    made.value()->record(recording::Event::submitted, 0, what, -1);
  }
}

// Measures everything that an operation pays for being checked if no rank sleeps: its fingerprint
// goes into a signal, a peer's fingerprint is read and compared, and two events are recorded.
// Deadlines and losses are checked only before a sleep, and heartbeats are the service thread's.
void checks_of_an_operation(benchmark::State& state) {
  const auto made = Recorder::create({"", 4096, 1, 0, 1});
  if (!made.ok()) return state.SkipWithError("no recorder");
  Fingerprint what;
  fsccl_transport_line_t line{};
  for (auto _ : state) {
    what.sequence++;
    made.value()->record(recording::Event::submitted, 0, what, -1);
    std::memcpy(line.fingerprint, &what, sizeof line.fingerprint);
    benchmark::DoNotOptimize(line);
    benchmark::DoNotOptimize(equal(what, line.fingerprint));
    made.value()->record(recording::Event::completed, 0, what, -1);
  }
}

BENCHMARK(planned_step)->Arg(17)->Arg(127);
BENCHMARK(plan_a_step)->Arg(17)->Arg(127)->Unit(benchmark::kMillisecond);
BENCHMARK(lay_out)->Arg(2)->Arg(64)->Arg(1024);
BENCHMARK(build_plan<unshard_shared>)->Name("plan_unshard_shared")->Arg(2)->Arg(64);
BENCHMARK(build_plan<reduce_grads>)->Name("plan_reduce_grads")->Arg(2)->Arg(64);
BENCHMARK(compare_fingerprints);
BENCHMARK(flight_recorder_event);
BENCHMARK(checks_of_an_operation);

}  // namespace

BENCHMARK_MAIN();
