#include "step_schedule.h"

#include <algorithm>
#include <utility>

namespace fsccl::perf {

std::vector<StepEvent> make_step(size_t units, int prefetch, size_t stays) {
  std::vector<StepEvent> events;
  const auto add = [&events](EventKind kind, size_t unit, bool backward) {
    events.push_back({kind, unit, backward});
  };
  if (units == 0) return events;
  const bool early = prefetch > 0;
  add(EventKind::kGather, 0, false);
  for (size_t u = 0; u < units; u++) {
    add(EventKind::kWait, u, false);
    if (early && u + 1 < units) add(EventKind::kGather, u + 1, false);
    if (u != stays) add(EventKind::kReshard, u, false);
    if (!early && u + 1 < units) add(EventKind::kGather, u + 1, false);
  }
  const auto gather_again = [&](size_t unit) {
    if (unit != stays) add(EventKind::kGather, unit, true);
  };
  gather_again(units - 1);
  for (size_t u = units; u-- > 0;) {
    if (u != stays) add(EventKind::kWait, u, true);
    add(EventKind::kGradients, u, true);
    if (early && u > 0) gather_again(u - 1);
    add(EventKind::kReshard, u, true);
    add(EventKind::kReduce, u, true);
    if (!early && u > 0) gather_again(u - 1);
  }
  return events;
}

std::vector<StepEvent> make_step_by_parameter(const Model& model, int prefetch) {
  std::vector<StepEvent> events;
  const size_t units = model.units.size();
  if (units == 0) return events;
  const auto add = [&events](EventKind kind, size_t unit, bool backward, size_t param = 0) {
    events.push_back({kind, unit, backward, param});
  };
  // Adds the backward pass of the parameters [begin, end) of a unit.
  const auto pass = [&add](size_t unit, size_t begin, size_t end) {
    for (size_t i = end; i-- > begin;) {
      add(EventKind::kGradient, unit, true, i);
      if (i + 1 < end) add(EventKind::kReduceOne, unit, true, i + 1);
      add(EventKind::kRelease, unit, true, i);
    }
    if (begin < end) add(EventKind::kReduceOne, unit, true, begin);
  };
  const std::vector<ModelParam>& root = model.units[0].params;
  const bool early = prefetch > 0;
  const bool own_head = std::any_of(root.begin() + 1, root.end(), [&](const ModelParam& param) {
    return param.elements() == root[0].elements();
  });
  // The units in the order in which they are used: the root, the others, the root again, and back.
  std::vector<size_t> order;
  for (size_t u = 0; u < units; u++) order.push_back(u);
  if (units > 1 && root.size() > 1) order.push_back(0);
  for (size_t u = units; u-- > 1;) order.push_back(u);
  const size_t forward = units > 1 ? units : 0;
  add(EventKind::kGather, order[0], false);
  for (size_t k = 0; k < order.size(); k++) {
    const size_t u = order[k];
    const bool backward = k >= forward, again = k + 1 < order.size() && order[k + 1] == u;
    const auto gather_next = [&] {
      if (k + 1 < order.size()) add(EventKind::kGather, order[k + 1], k + 1 >= forward);
    };
    add(EventKind::kWait, u, backward);
    if (backward && u == 0 && own_head) add(EventKind::kRelease, 0, true, 0);
    if (early && !again) gather_next();
    if (backward) pass(u, u == 0 ? 1 : 0, model.units[u].params.size());
    add(EventKind::kReshard, u, backward);
    if (!early || again) gather_next();
  }
  add(EventKind::kGradient, 0, true, 0);
  add(EventKind::kReduceOne, 0, true, 0);
  return events;
}

uint64_t slot_bytes(const ModelParam& param, uint64_t element_bytes) {
  return (param.elements() * element_bytes + 63) / 64 * 64;
}

uint64_t slots_bytes(const ModelUnit& unit, const StepShape& shape, uint64_t element_bytes) {
  if (!shape.by_parameter) return slot_bytes(unit, shape.flat, element_bytes);
  uint64_t sum = 0;
  for (const ModelParam& param : unit.params) sum += slot_bytes(param, element_bytes);
  return sum;
}

uint64_t classic_bytes(const Model& model, const StepShape& shape, int prefetch) {
  uint64_t largest = 0;
  for (const ModelUnit& unit : model.units)
    largest = std::max(largest, slot_bytes(unit, shape.flat, shape.wire_bytes));
  return static_cast<uint64_t>(prefetch + 3) * largest;
}

uint64_t slot_bytes(const ModelUnit& unit, bool flat, uint64_t element_bytes) {
  const auto up = [](uint64_t bytes) { return (bytes + 63) / 64 * 64; };
  uint64_t sum = 0;
  for (const ModelParam& param : unit.params)
    sum += flat ? param.elements() * element_bytes : up(param.elements() * element_bytes);
  return up(sum);
}

std::vector<bool> kept_units(const Model& model, bool flat, uint64_t wire_bytes, bool keep,
                             uint64_t budget_bytes) {
  std::vector<bool> kept(model.units.size(), false);
  uint64_t used = 0;
  for (size_t u = 0; keep && u < kept.size(); u++) {
    if (u == model.stays) continue;
    const uint64_t bytes = slot_bytes(model.units[u], flat, wire_bytes);
    if (bytes > budget_bytes - used) continue;
    kept[u] = true;
    used += bytes;
  }
  return kept;
}

uint64_t minimum_bytes(const Model& model, const std::vector<StepEvent>& events,
                       const StepShape& shape) {
  constexpr uint64_t kShardBytes = 4, kShardedGradBytes = 4;
  const uint64_t ranks = static_cast<uint64_t>(shape.ranks),
                 hosts = static_cast<uint64_t>(shape.hosts);
  uint64_t sum = 0;
  for (const StepEvent& event : events) {
    const ModelUnit& unit = model.units[event.unit];
    const bool one = event.kind == EventKind::kReduceOne;
    const uint64_t elements = one ? unit.params[event.param].elements() : unit.elements();
    if (event.kind == EventKind::kGather && !(event.backward && shape.kept[event.unit])) {
      if (shape.shared)
        sum += elements * (kShardBytes + shape.wire_bytes * hosts);
      else
        sum += elements * (kShardBytes + (ranks - 1) * shape.wire_bytes + ranks * shape.wire_bytes);
    }
    if (event.kind == EventKind::kReduce || one)
      sum += elements * (ranks * shape.gradient_bytes + kShardedGradBytes);
  }
  return sum;
}

std::vector<uint64_t> live_bytes(const Model& model, const std::vector<StepEvent>& events,
                                 const StepShape& shape) {
  const uint64_t ranks = static_cast<uint64_t>(shape.ranks),
                 copies = shape.shared ? static_cast<uint64_t>(shape.hosts) : ranks;
  const uint64_t gradient_copies = shape.gradient_slots ? ranks : 0;
  std::vector<uint64_t> there(model.units.size());  // bytes of each unit's parameters
  std::vector<uint64_t> after;
  uint64_t live = 0;
  for (size_t u = 0; u < there.size(); u++)  // kept units are there from the second step on
    if (shape.kept[u])
      live += there[u] = copies * slots_bytes(model.units[u], shape, shape.wire_bytes);
  for (const StepEvent& event : events) {
    const ModelUnit& unit = model.units[event.unit];
    const ModelParam& param = unit.params[event.param];
    uint64_t& params = there[event.unit];
    switch (event.kind) {
      case EventKind::kGather:
        if (!params) live += params = copies * slots_bytes(unit, shape, shape.wire_bytes);
        break;
      case EventKind::kRelease:
        live -= copies * slot_bytes(param, shape.wire_bytes);
        params -= copies * slot_bytes(param, shape.wire_bytes);
        break;
      case EventKind::kReshard:
        if (!shape.kept[event.unit]) live -= std::exchange(params, 0);
        break;
      case EventKind::kGradients:
        live += gradient_copies * slots_bytes(unit, shape, shape.gradient_bytes);
        break;
      case EventKind::kReduce:
        live -= gradient_copies * slots_bytes(unit, shape, shape.gradient_bytes);
        break;
      case EventKind::kGradient:
        live += gradient_copies * slot_bytes(param, shape.gradient_bytes);
        break;
      case EventKind::kReduceOne:
        live -= gradient_copies * slot_bytes(param, shape.gradient_bytes);
        break;
      case EventKind::kWait:
        break;
    }
    after.push_back(live);
  }
  return after;
}

uint64_t live_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          const StepShape& shape) {
  const std::vector<uint64_t> after = live_bytes(model, events, shape);
  return after.empty() ? 0 : *std::max_element(after.begin(), after.end());
}

uint64_t plan_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          StepShape shape) {
  shape.ranks = shape.hosts = 1;
  if (!shape.shared) return live_bound_bytes(model, events, shape);
  StepShape parameters = shape, gradients = shape;
  parameters.gradient_slots = false;
  gradients.wire_bytes = 0;
  return live_bound_bytes(model, events, parameters) + live_bound_bytes(model, events, gradients);
}

}  // namespace fsccl::perf
