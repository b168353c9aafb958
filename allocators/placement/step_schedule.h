// A planned step: the events of a step that has run or was declared, and the offset of each event.
// A slot may be held across the step boundary (of a unit that is kept, or fetched ahead for the
// next step), so a step may begin with some slots held.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory_resource>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "allocators/placement/planner.h"
#include "allocators/placement/stream_order.h"

namespace fsccl {

// The events of a slot, and the events that order the streams. A program of one stream has only
// kTake and kGiveBack.
enum class StepOp : uint8_t { kGiveBack, kTake, kUse, kRecord, kWait };

struct StepEvent {
  StepOp op = StepOp::kTake;
  bool stable = false;  // for a take: one offset for all occurrences of the key
  // For a take, the stream that uses the slot first; for use, record and wait, the stream on which
  // that happens.
  uint32_t stream = 0;
  // For take, give back and use, the key of the slot (a unit and a role); for record and wait, the
  // event between streams.
  uint64_t key = 0;
  uint64_t bytes = 0;  // for a take, the size of the slot
  bool takes() const { return op == StepOp::kTake; }
  bool moves_slot() const { return op == StepOp::kTake || op == StepOp::kGiveBack; }
  bool operator==(const StepEvent&) const = default;
};

struct HeldSlot {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // rounded up to the alignment
  bool stable = false;
  StreamClock done{};  // its last use on each stream so far
};
using HeldSlots = std::pmr::unordered_map<uint64_t, HeldSlot>;

struct StepSchedule {
  std::vector<StepEvent> events;
  // By event. Only the offset of a take has a meaning.
  std::vector<uint64_t> offset;
  std::unordered_map<uint64_t, std::vector<uint32_t>> takes;  // key -> its take events, in order
  // By event: for a take, the event that gives its slot back, or else the end of the step.
  std::vector<uint32_t> until;
  uint64_t bytes = 0;  // extent
  uint64_t bound = 0;  // most bytes live at once
  // The most bytes found that may not overlap; at least `bound`.
  uint64_t clique_bound = 0;
  // True if it ends with the same slots held with which it begins.
  bool periodic = true;
};

// Several steps whose events are known, planned together: any of them may follow any other. Slots
// that the steps have in common have one place in all of them: slots of a stable key, and slots
// that are taken before the steps part.
struct JointPlan {
  std::vector<StepSchedule> steps;  // no two with the same events
  // Size -> the lowest offsets at which the plan has slots of this size, ascending.
  std::map<uint64_t, std::vector<uint64_t>> homes;
  // The bytes and bounds of all steps together. The schedule of each step has the same numbers.
  uint64_t bytes = 0, bound = 0, clique_bound = 0;

  // Returns the number of events, from the first on, that two steps have in common.
  size_t common(size_t a, size_t b) const { return common_[a * steps.size() + b]; }
  // Both return a step whose first `events` events are those of `step`: next() one that goes on
  // with `event`, and ends() one that ends there.
  std::optional<size_t> next(size_t step, size_t events, const StepEvent& event) const;
  std::optional<size_t> ends(size_t step, size_t events) const;
  void compare();  // finds what steps have in common, when all steps are there

 private:
  std::vector<size_t> common_;
};

// Plans steps together. First the events that contradict `held`, the slots that are held when a
// step begins, are left out of each step: a slot that is held already is not taken. If two steps
// are equal then, only one of them is planned; (*of)[i] is the index in the plan of steps[i]. The
// bytes of events are rounded up to `alignment`. The result is the same on all ranks, because the
// function is pure.
JointPlan plan_steps(const std::vector<std::vector<StepEvent>>& steps, const HeldSlots& held,
                     uint64_t alignment, int64_t most_compared = kMostCompared,
                     std::vector<size_t>* of = nullptr);
StepSchedule plan_step(const std::vector<StepEvent>& events, const HeldSlots& held,
                       uint64_t alignment, int64_t most_compared = kMostCompared);

}  // namespace fsccl
