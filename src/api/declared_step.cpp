#include "api/declared_step.h"

#include <algorithm>
#include <set>

#include "base/hash.h"

namespace fsccl {
namespace {

Result<Ref<Unit>> unit_of_event(const fsccl_event_t& event, size_t number) {
  Result<Ref<Unit>> found = fsccl::unit_of(event.unit);
  if (!found.ok())
    return fail(FSCCL_ERR_INVALID_HANDLE, "event {}: {}", number, found.status().text());
  if (event.kind < FSCCL_EVENT_UNSHARD || event.kind > FSCCL_EVENT_RELEASE)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "event {}: {} is not a fsccl_event_kind_t", number,
                static_cast<int>(event.kind));
  return found;
}

Status check_pool(const Unit& unit, const Pool& pool, size_t number) {
  if (unit.spec().pool == &pool) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "event {}: unit '{}' has its slots in another pool, '{}': declare them there", number,
              unit.spec().name, unit.spec().pool->name());
}

// Checks that the parameters which an event names exist in its unit.
Status check_range(const fsccl_event_t& event, const Unit& unit, size_t number) {
  const size_t count = unit.spec().params.size();
  if (event.count && event.first < count && event.count <= count - event.first) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "event {}: unit '{}' has {} parameters, not {} from {} on", number, unit.spec().name,
              count, event.count, event.first);
}

bool of_some(const fsccl_event_t& event) { return event.first || event.count; }

// A unit is unsharded and resharded as a whole, even if it has a slot for each parameter.
Status check_whole(const fsccl_event_t& event, size_t number) {
  if (!of_some(event)) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "event {}: a unit is unsharded and resharded whole: first and count are 0", number);
}

}  // namespace

DeclaredStep::UnitState& DeclaredStep::state_of(const HostUnit& unit) {
  const auto [found, first] = units_.try_emplace(&unit);
  UnitState& state = found->second;
  if (!first) return state;
  state.unsharded.now = unit.unsharded();
  state.parameters.resize(unit.parameter_slots().size());
  state.gradients.resize(unit.gradient_slots().size());
  for (size_t k = 0; k < state.parameters.size(); k++)
    state.parameters[k].now = unit.unsharded() && unit.parameter_slots().held(k);
  for (size_t k = 0; k < state.gradients.size(); k++)
    state.gradients[k].now = unit.gradient_slots().held(k);
  return state;
}

Status DeclaredStep::add(const fsccl_event_t& event, size_t number) {
  FSCCL_ASSIGN(Ref<Unit> object, unit_of_event(event, number));
  FSCCL_TRY(check_pool(*object, pool_, number));
  const auto& unit = static_cast<const HostUnit&>(*object);
  for (const uint64_t part :
       {unit.parameter_slots().key(0), static_cast<uint64_t>(event.kind), event.first, event.count})
    hash = mix_hash(hash, part);
  UnitState& state = state_of(unit);
  if (!state.object) state.object = std::move(object);
  if (event.kind == FSCCL_EVENT_UNSHARD || event.kind == FSCCL_EVENT_RESHARD)
    return move_unit(unit, event, state, number);
  const bool release = event.kind == FSCCL_EVENT_RELEASE;
  if (release && !unit.spec().by_parameter)
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "event {}: unit '{}' has one slot for all parameters: FSCCL_EVENT_RESHARD gives it back",
        number, unit.spec().name);
  std::vector<Held>& states = release ? state.parameters : state.gradients;
  FSCCL_TRY(find_slots(unit, event, states, number));
  return move_slots(unit, release ? unit.parameter_slots() : unit.gradient_slots(), states,
                    event.kind == FSCCL_EVENT_GRAD, number);
}

Status DeclaredStep::move_unit(const HostUnit& unit, const fsccl_event_t& event, UnitState& state,
                               size_t number) {
  const bool take = event.kind == FSCCL_EVENT_UNSHARD;
  const SlotSet& slots = unit.parameter_slots();
  FSCCL_TRY(check_whole(event, number));
  if (!state.unsharded.may(take))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "event {}: the slot for the parameters of unit '{}' is {} at that point", number,
                unit.spec().name, take ? "held already" : "not held");
  state.unsharded.set(take);
  if (unit.keeps()) {  // taken once, and it stays
    if (take && !slots.any_held() && !state.kept) move(slots, 0, true);
    state.kept = true;
    return success();
  }
  for (size_t k = 0; k < slots.size(); k++) {
    if (take || state.parameters[k].now) move(slots, k, take);
    state.parameters[k].set(take);
  }
  return success();
}

Status DeclaredStep::find_slots(const HostUnit& unit, const fsccl_event_t& event,
                                const std::vector<Held>& states, size_t number) {
  const size_t count = unit.spec().params.size();
  const bool all = !of_some(event), take = event.kind == FSCCL_EVENT_GRAD;
  slots_.clear();
  if (!all && !unit.spec().by_parameter)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "event {}: unit '{}' has one slot for all gradients: first and count are 0", number,
                unit.spec().name);
  if (!all) FSCCL_TRY(check_range(event, unit, number));
  if (!unit.spec().by_parameter) {
    slots_.push_back(0);
    return success();
  }
  for (size_t i = event.first; i < (all ? count : event.first + event.count); i++) {
    const size_t k = unit.slot_of(i);
    const bool exists = event.kind == FSCCL_EVENT_RELEASE || unit.has_grad(i);
    if (exists && (!all || (k == i && states[k].may(take)))) slots_.push_back(k);
  }
  std::sort(slots_.begin(), slots_.end());
  slots_.erase(std::unique(slots_.begin(), slots_.end()), slots_.end());
  return success();
}

Status DeclaredStep::move_slots(const HostUnit& unit, const SlotSet& slots,
                                std::vector<Held>& states, bool take, size_t number) {
  for (const size_t k : slots_) {
    if (!states[k].may(take))
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "event {}: the slot for the {}{} of unit '{}' is {} at that point", number,
                  slots.stable() ? "parameters" : "gradients",
                  unit.spec().by_parameter
                      ? fmt::format(" (that of parameter {}, '{}')", k, unit.spec().params[k].name)
                      : "",
                  unit.spec().name, take ? "held already" : "not held");
    states[k].set(take);
    move(slots, k, take);
  }
  return success();
}

void DeclaredStep::move(const SlotSet& slots, size_t k, bool take) {
  if (slots.bytes(k) == 0) return;
  if (slots.part() == PartKind::shared) owner_rank = slots.owner_rank();
  auto& events = slots.part() == PartKind::shared ? shared : own;
  if (take)
    events.push_back({.stable = slots.stable(), .key = slots.key(k), .bytes = slots.bytes(k)});
  else
    events.push_back({.op = StepOp::kGiveBack, .key = slots.key(k)});
}

Status DeclaredDeviceStep::add(const fsccl_event_t& event, size_t number) {
  FSCCL_ASSIGN(Ref<Unit> object, unit_of_event(event, number));
  FSCCL_TRY(check_pool(*object, pool_, number));
  const Unit& unit = *object;
  for (const uint64_t part : {static_cast<uint64_t>(event.kind), event.first, event.count})
    hash = mix_hash(hash, part);
  const bool by_parameter = unit.spec().by_parameter;
  if (!by_parameter && (event.kind == FSCCL_EVENT_RELEASE || of_some(event)))
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "event {}: unit '{}' has one slot for all parameters, and one for all gradients: no "
        "FSCCL_EVENT_RELEASE, and first and count are 0",
        number, unit.spec().name);
  Status moved = by_parameter
                     ? move_parameters(static_cast<const ParameterUnits&>(unit), event, number)
                     : move(static_cast<const DeviceUnit&>(unit), event.kind, number);
  objects_.push_back(std::move(object));
  return moved;
}

// An event of the whole unit is about the slots that it changes: if some slots were released
// before, a reshard gives back the remaining ones. A tied parameter that an event names stands for
// its owner.
Status DeclaredDeviceStep::move_parameters(const ParameterUnits& unit, const fsccl_event_t& event,
                                           size_t number) {
  const bool some = of_some(event),
             of_grad = event.kind == FSCCL_EVENT_GRAD || event.kind == FSCCL_EVENT_REDUCE;
  const bool take = event.kind == FSCCL_EVENT_UNSHARD || event.kind == FSCCL_EVENT_GRAD;
  if (event.kind == FSCCL_EVENT_UNSHARD || event.kind == FSCCL_EVENT_RESHARD)
    FSCCL_TRY(check_whole(event, number));
  else if (some)
    FSCCL_TRY(check_range(event, unit, number));
  std::set<size_t> owners;
  for (size_t i = event.first; i < (some ? event.first + event.count : unit.spec().params.size());
       i++)
    if (!of_grad || unit.has_grad(i)) owners.insert(unit.layout().owner(i));
  for (const size_t i : owners) {
    const DeviceUnit& one = unit.unit_of(i);
    const UnitState& state = state_of(one);
    const DeclaredHold& hold = of_grad ? state.gradients : state.unsharded;
    if (!some && event.kind != FSCCL_EVENT_UNSHARD && !hold.may(take)) continue;
    FSCCL_TRY(
        move(one, event.kind == FSCCL_EVENT_RELEASE ? FSCCL_EVENT_RESHARD : event.kind, number));
  }
  return success();
}

DeclaredDeviceStep::UnitState& DeclaredDeviceStep::state_of(const DeviceUnit& unit) {
  const auto [found, first] = units_.try_emplace(&unit);
  if (first) {
    found->second.unsharded.now = unit.unsharded();
    found->second.gradients.now = unit.gradient_slot().held;
  }
  return found->second;
}

Status DeclaredDeviceStep::move(const DeviceUnit& unit, fsccl_event_kind_t kind, size_t number) {
  const bool parameters = kind == FSCCL_EVENT_UNSHARD || kind == FSCCL_EVENT_RESHARD;
  const DeviceUnit::SlotInfo slot = parameters ? unit.parameter_slot() : unit.gradient_slot();
  hash = mix_hash(hash, slot.key);
  UnitState& state = state_of(unit);
  const bool take = kind == FSCCL_EVENT_UNSHARD || kind == FSCCL_EVENT_GRAD;
  DeclaredHold& hold = parameters ? state.unsharded : state.gradients;
  if (!hold.may(take))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "event {}: the slot for the {} of unit '{}' is {} at that point", number,
                parameters ? "parameters" : "gradients", unit.spec().name,
                take ? "held already" : "not held");
  hold.set(take);
  const bool stays = parameters && unit.keeps();  // taken once
  const bool moves = !stays || (take && !slot.held && !state.kept);
  state.kept = state.kept || stays;
  if (!slot.bytes || !moves) return success();
  if (take)
    events.push_back({.stable = parameters, .key = slot.key, .bytes = slot.bytes});
  else
    events.push_back({.op = StepOp::kGiveBack, .key = slot.key});
  return success();
}

}  // namespace fsccl
