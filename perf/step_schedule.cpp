#include "step_schedule.h"

#include <algorithm>

namespace fsccl::perf {

std::vector<StepEvent> make_step(size_t units, int prefetch) {
  std::vector<StepEvent> events;
  const auto add = [&events](EventKind kind, size_t unit, bool backward) { events.push_back({kind, unit, backward}); };
  if (units == 0) return events;
  const bool early = prefetch > 0;
  add(EventKind::kGather, 0, false);
  for (size_t u = 0; u < units; u++) {
    add(EventKind::kWait, u, false);
    if (early && u + 1 < units) add(EventKind::kGather, u + 1, false);
    if (u != 0) add(EventKind::kReshard, u, false);
    if (!early && u + 1 < units) add(EventKind::kGather, u + 1, false);
  }
  if (units > 1) add(EventKind::kGather, units - 1, true);
  for (size_t u = units; u-- > 0;) {
    if (u != 0) add(EventKind::kWait, u, true);
    add(EventKind::kGradients, u, true);
    if (early && u > 1) add(EventKind::kGather, u - 1, true);
    add(EventKind::kReshard, u, true);
    add(EventKind::kReduce, u, true);
    if (!early && u > 1) add(EventKind::kGather, u - 1, true);
  }
  return events;
}

uint64_t slot_bytes(const ModelUnit& unit, bool flat, uint64_t element_bytes) {
  const auto up = [](uint64_t bytes) { return (bytes + 63) / 64 * 64; };
  uint64_t sum = 0;
  for (const ModelParam& param : unit.params) sum += flat ? param.elements() * element_bytes : up(param.elements() * element_bytes);
  return up(sum);
}

std::vector<bool> kept_units(const Model& model, bool flat, uint64_t wire_bytes, bool keep, uint64_t budget_bytes) {
  std::vector<bool> kept(model.units.size(), false);
  uint64_t used = 0;
  for (size_t u = 1; keep && u < kept.size(); u++) {
    const uint64_t bytes = slot_bytes(model.units[u], flat, wire_bytes);
    if (bytes > budget_bytes - used) continue;
    kept[u] = true;
    used += bytes;
  }
  return kept;
}

uint64_t minimum_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape) {
  constexpr uint64_t kShardBytes = 4, kShardedGradBytes = 4;
  const uint64_t ranks = static_cast<uint64_t>(shape.ranks), hosts = static_cast<uint64_t>(shape.hosts);
  uint64_t sum = 0;
  for (const StepEvent& event : events) {
    const uint64_t elements = model.units[event.unit].elements();
    if (event.kind == EventKind::kGather && !(event.backward && shape.kept[event.unit])) {
      if (shape.shared)
        sum += elements * (kShardBytes + shape.wire_bytes * hosts);
      else
        sum += elements * (kShardBytes + (ranks - 1) * shape.wire_bytes + ranks * shape.wire_bytes);
    }
    if (event.kind == EventKind::kReduce) sum += elements * (ranks * shape.gradient_bytes + kShardedGradBytes);
  }
  return sum;
}

std::vector<uint64_t> live_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape) {
  const uint64_t ranks = static_cast<uint64_t>(shape.ranks), copies = shape.shared ? static_cast<uint64_t>(shape.hosts) : ranks;
  std::vector<bool> there(model.units.size(), false);
  std::vector<uint64_t> after;
  uint64_t live = 0;
  for (size_t u = 0; u < there.size(); u++)  // what is kept is there from the second step on
    if (shape.kept[u]) live += copies * slot_bytes(model.units[u], shape.flat, shape.wire_bytes), there[u] = true;
  for (const StepEvent& event : events) {
    const uint64_t params = copies * slot_bytes(model.units[event.unit], shape.flat, shape.wire_bytes);
    const uint64_t gradients =
        shape.gradient_slots ? ranks * slot_bytes(model.units[event.unit], shape.flat, shape.gradient_bytes) : 0;
    switch (event.kind) {
      case EventKind::kGather:
        if (!there[event.unit]) live += params, there[event.unit] = true;
        break;
      case EventKind::kReshard:
        if (!shape.kept[event.unit]) live -= params, there[event.unit] = false;
        break;
      case EventKind::kGradients:
        live += gradients;
        break;
      case EventKind::kReduce:
        live -= gradients;
        break;
      case EventKind::kWait:
        break;
    }
    after.push_back(live);
  }
  return after;
}

uint64_t live_bound_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape) {
  const std::vector<uint64_t> after = live_bytes(model, events, shape);
  return after.empty() ? 0 : *std::max_element(after.begin(), after.end());
}

}  // namespace fsccl::perf
