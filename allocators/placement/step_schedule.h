// A step as a plan: the events of a step that has run or was declared, and the offset of each
// event. A slot may live across the step boundary (a unit that is kept, or fetched ahead for the
// next step), so a step begins with some slots held.
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
  bool stable = false;  // take: one offset for all occurrences of the key
  // take: that the slot is first used on; use, record, wait: that it happens on
  uint32_t stream = 0;
  // take, give back, use: whose slot (unit and role); record, wait: which event between streams
  uint64_t key = 0;
  uint64_t bytes = 0;  // take: of the slot
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
  // per event; meaningless where it gives back
  std::vector<uint64_t> offset;
  std::unordered_map<uint64_t, std::vector<uint32_t>> takes;  // key -> its take events, in order
  // per take: the event that gives it back, else the end of the step
  std::vector<uint32_t> until;
  uint64_t bytes = 0;  // extent
  uint64_t bound = 0;  // most bytes live at once
  // most bytes that may not overlap; >= bound
  uint64_t clique_bound = 0;
  // it ends with the slots held that it begins with
  bool periodic = true;
};

// Several steps whose events are known, planned together: any of them may follow any other. Slots
// that the steps have in common have one place in all of them: slots of a stable key, and slots
// that are taken before the steps part.
struct JointPlan {
  std::vector<StepSchedule> steps;  // no two with the same events
  // size -> offsets that slots of it have, the lowest, ascending
  std::map<uint64_t, std::vector<uint64_t>> homes;
  // bytes and bounds of all steps; a schedule says the same
  uint64_t bytes = 0, bound = 0, clique_bound = 0;

  // Returns the number of events, from the first on, that two steps have in common.
  size_t common(size_t a, size_t b) const { return common_[a * steps.size() + b]; }
  // Return a step whose first `events` events are those of `step`: one that has `event` next, or
  // one that ends there.
  std::optional<size_t> next(size_t step, size_t events, const StepEvent& event) const;
  std::optional<size_t> ends(size_t step, size_t events) const;
  void compare();  // finds what steps have in common; to be called when all steps are there

 private:
  std::vector<size_t> common_;
};

// Plans steps together. It first leaves out of each step what contradicts `held`, the slots that
// are held when a step begins: a slot that is held already is not taken. If two steps are equal
// then, only one of them is planned; (*of)[i] is the index in the plan of steps[i]. The bytes of
// events are rounded up to `alignment`. Pure: the result is the same everywhere.
JointPlan plan_steps(const std::vector<std::vector<StepEvent>>& steps, const HeldSlots& held,
                     uint64_t alignment, int64_t most_compared = kMostCompared,
                     std::vector<size_t>* of = nullptr);
StepSchedule plan_step(const std::vector<StepEvent>& events, const HeldSlots& held,
                       uint64_t alignment, int64_t most_compared = kMostCompared);

}  // namespace fsccl
