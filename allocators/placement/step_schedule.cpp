#include "allocators/placement/step_schedule.h"

#include <algorithm>

#include "allocators/placement/step_requests.h"

namespace fsccl {
namespace {

// The most homes of a size that are kept. When a step deviates, each of them is tried in each gap.
constexpr size_t kMostHomes = 256;

// Returns the events that a step which begins with these slots held can carry out. *periodic says
// whether the step ends with the same slots held.
std::vector<StepEvent> without_contradictions(const std::vector<StepEvent>& events,
                                              const HeldSlots& held, bool* periodic) {
  std::unordered_map<uint64_t, bool> is_held;
  for (const auto& [key, slot] : held) is_held[key] = true;
  std::vector<StepEvent> result;
  for (const StepEvent& event : events) {
    if (event.moves_slot()) {
      bool& now = is_held[event.key];
      if (now == event.takes()) continue;
      now = event.takes();
    } else if (event.op == StepOp::kUse && !is_held[event.key]) {
      continue;
    }
    result.push_back(event);
  }
  *periodic = true;
  for (const auto& [key, held_at_end] : is_held) *periodic &= held_at_end == held.contains(key);
  return result;
}

void note_takes(StepSchedule& schedule) {
  const auto count = static_cast<uint32_t>(schedule.events.size());
  schedule.until.assign(count, count);
  for (uint32_t i = 0; i < count; ++i) {
    const StepEvent& event = schedule.events[i];
    if (event.takes()) schedule.takes[event.key].push_back(i);
    if (event.op != StepOp::kGiveBack) continue;
    const auto takes = schedule.takes.find(event.key);
    if (takes != schedule.takes.end()) schedule.until[takes->second.back()] = i;
  }
}

void note_homes(JointPlan& plan) {
  for (const StepSchedule& step : plan.steps)
    for (size_t i = 0; i < step.events.size(); ++i)
      if (step.events[i].takes()) plan.homes[step.events[i].bytes].push_back(step.offset[i]);
  for (auto& [bytes, offsets] : plan.homes) {
    std::sort(offsets.begin(), offsets.end());
    offsets.erase(std::unique(offsets.begin(), offsets.end()), offsets.end());
    offsets.resize(std::min(offsets.size(), kMostHomes));
  }
}

// Returns the schedules of `steps` without contradictions, each once.
std::vector<StepSchedule> reconciled(const std::vector<std::vector<StepEvent>>& steps,
                                     const HeldSlots& held, std::vector<size_t>* of) {
  std::vector<StepSchedule> result;
  if (of) of->clear();
  for (const std::vector<StepEvent>& events : steps) {
    StepSchedule schedule;
    schedule.events = without_contradictions(events, held, &schedule.periodic);
    const auto same = [&](const StepSchedule& other) { return other.events == schedule.events; };
    const auto found = std::find_if(result.begin(), result.end(), same);
    if (of) of->push_back(static_cast<size_t>(found - result.begin()));
    if (found == result.end()) result.push_back(std::move(schedule));
  }
  return result;
}

}  // namespace

std::optional<size_t> JointPlan::next(size_t step, size_t events, const StepEvent& event) const {
  for (size_t other = 0; other < steps.size(); ++other)
    if (common(step, other) >= events && events < steps[other].events.size() &&
        steps[other].events[events] == event)
      return other;
  return std::nullopt;
}

std::optional<size_t> JointPlan::ends(size_t step, size_t events) const {
  for (size_t other = 0; other < steps.size(); ++other)
    if (common(step, other) >= events && steps[other].events.size() == events) return other;
  return std::nullopt;
}

void JointPlan::compare() {
  common_.clear();
  for (const StepSchedule& a : steps)
    for (const StepSchedule& b : steps)
      common_.push_back(static_cast<size_t>(
          std::mismatch(a.events.begin(), a.events.end(), b.events.begin(), b.events.end()).first -
          a.events.begin()));
}

JointPlan plan_steps(const std::vector<std::vector<StepEvent>>& steps, const HeldSlots& held,
                     uint64_t alignment, int64_t most_compared, std::vector<size_t>* of) {
  JointPlan plan;
  plan.steps = reconciled(steps, held, of);
  plan.compare();
  const StepRequests requests = step_requests(plan, held);
  const SlotPlan packed = plan_slots(requests.list, requests.events, alignment, most_compared);
  plan.bytes = packed.bytes;
  plan.bound = packed.bound;
  plan.clique_bound = packed.clique_bound;
  for (StepSchedule& step : plan.steps) {
    step.bytes = packed.bytes;
    step.bound = packed.bound;
    step.clique_bound = packed.clique_bound;
    step.offset.assign(step.events.size(), 0);
    note_takes(step);
  }
  for (size_t i = 0; i < requests.list.size(); ++i) {
    const StepRequests::Taking& place = requests.place[i];
    if (place.event >= 0)
      plan.steps[place.step].offset[static_cast<size_t>(place.event)] = packed.offset[i];
  }
  note_homes(plan);
  return plan;
}

StepSchedule plan_step(const std::vector<StepEvent>& events, const HeldSlots& held,
                       uint64_t alignment, int64_t most_compared) {
  return plan_steps({events}, held, alignment, most_compared).steps[0];
}

}  // namespace fsccl
