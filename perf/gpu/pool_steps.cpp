#include "perf/gpu/pool_steps.h"

#include <fmt/format.h>

#include <algorithm>

namespace fsccl::perf {
namespace {

using Units = std::vector<std::vector<uint64_t>>;  // the bytes of each unit's parameters

class StepMaker {
 public:
  // With `copies` parameters have their own slots, and the slot of the gather is given back once
  // they are filled.
  StepMaker(const Units& units, bool copies)
      : units_(units), copies_(copies), ready_(units.size()) {
    for (const auto& unit : units) {
      first_.push_back(made_.keys);
      made_.keys += 2 + unit.size();
    }
  }

  PoolStep step(std::string name) && {
    made_.name = std::move(name);
    forward();
    backward();
    uint64_t live = 0;
    std::vector<uint64_t> bytes(made_.keys);
    for (const StepEvent& event : made_.events) {
      if (event.takes()) live += bytes[event.key] = event.bytes;
      if (!event.takes()) live -= bytes[event.key];
      made_.pairs += event.takes();
      made_.bound_bytes = std::max(made_.bound_bytes, live);
    }
    return std::move(made_);
  }

 private:
  uint64_t gathered(size_t unit) const { return first_[unit]; }
  uint64_t gradient(size_t unit) const { return first_[unit] + 1; }
  uint64_t param(size_t unit, size_t i) const { return first_[unit] + 2 + i; }
  uint64_t bytes(size_t unit) const {
    uint64_t sum = 0;
    for (const uint64_t size : units_[unit]) sum += size;
    return sum;
  }
  void take(uint64_t key, uint64_t size, bool stable) {
    made_.events.push_back({.stable = stable, .key = key, .bytes = size});
  }
  void give(uint64_t key) { made_.events.push_back({.op = StepOp::kGiveBack, .key = key}); }

  void gather(size_t unit) {
    if (!ready_[unit]) take(gathered(unit), bytes(unit), !copies_);
    ready_[unit] = true;
  }
  void use(size_t unit) {
    gather(unit);
    if (!copies_ || in_use_ == unit) return;
    for (size_t i = 0; i < units_[unit].size(); i++) take(param(unit, i), units_[unit][i], true);
    give(gathered(unit));
    in_use_ = unit;
  }
  void drop(size_t unit) {
    if (!copies_) give(gathered(unit));
    for (size_t i = 0; copies_ && i < units_[unit].size(); i++) give(param(unit, i));
    ready_[unit] = false;
    in_use_ = units_.size();
  }
  // The last unit stays, because the backward pass begins with it.
  void forward() {
    for (size_t unit = 0; unit < units_.size(); unit++) {
      use(unit);
      if (unit + 1 == units_.size()) break;
      gather(unit + 1);
      drop(unit);
    }
  }
  void backward() {
    for (size_t unit = units_.size(); unit-- > 0;) {
      use(unit);
      if (unit) gather(unit - 1);
      take(gradient(unit), bytes(unit), false);
      drop(unit);
      give(gradient(unit));
    }
  }

  const Units& units_;
  const bool copies_;
  std::vector<bool> ready_;      // units that are gathered, or whose parameters are there
  size_t in_use_ = SIZE_MAX;     // with copies: the unit whose parameters are there
  std::vector<uint64_t> first_;  // the first key of each unit
  PoolStep made_;
};

Units between(uint64_t outer, const std::vector<uint64_t>& layer, size_t layers) {
  Units units(layers, layer);
  units.insert(units.begin(), {outer});
  units.push_back({outer});
  return units;
}

}  // namespace

std::vector<PoolStep> pool_steps() {
  constexpr uint64_t kMb = 1 << 20, kRow = uint64_t{4096} * 2;  // rows of a parameter of Llama 3 8B
  const Units equal = between(200 * kMb, {85 * kMb}, 32);
  const Units llama = between(128256 * kRow,
                              {4096 * kRow, 1024 * kRow, 1024 * kRow, 4096 * kRow, 14336 * kRow,
                               14336 * kRow, 14336 * kRow, kRow, kRow},
                              32);
  return {StepMaker(equal, false).step("equal_layers_flat"),
          StepMaker(llama, true).step("llama_3_8b_copies")};
}

std::string PoolStep::json() const {
  std::string list;
  for (const StepEvent& event : events)
    list += fmt::format("{}[{}, {}, {}]", list.empty() ? "" : ", ", event.takes() ? 1 : 0,
                        event.key, event.bytes);
  return fmt::format("{{\"trace\": \"{}\", \"events\": [{}]}}", name, list);
}

}  // namespace fsccl::perf
