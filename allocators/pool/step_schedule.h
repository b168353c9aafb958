// The events of one step as a plan: what a step that has run, or was declared, says about the next ones, and the offset of each
// event. A slot may live across the step boundary (a unit that is kept, or fetched ahead for the next step), so a step begins with
// some slots held.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <unordered_map>
#include <utility>
#include <vector>

namespace fsccl {

struct StepEvent {
  bool take = true;     // else give back
  uint64_t key = 0;     // who asks (unit and role)
  uint64_t bytes = 0;   // of the slot; give back: ignored
  bool stable = false;  // one offset for all occurrences of the key
  bool operator==(const StepEvent&) const = default;
};

struct HeldSlot {
  uint64_t offset = 0;
  uint64_t bytes = 0;  // rounded up to the alignment
  bool stable = false;
};
using HeldSlots = std::pmr::unordered_map<uint64_t, HeldSlot>;

struct StepSchedule {
  std::vector<StepEvent> events;
  std::vector<uint64_t> offset;                               // per event; meaningless where it gives back
  std::unordered_map<uint64_t, std::vector<uint32_t>> takes;  // key -> its take events, in order
  std::vector<std::pair<uint64_t, uint64_t>> stable_ranges;   // [begin, end) of all stable offsets, merged, ascending
  uint64_t bytes = 0;                                         // extent
  uint64_t bound = 0;                                         // most bytes live at once
  bool periodic = true;                                       // it ends with the slots held that it begins with
};

// Plans the step that is `events` without what contradicts `held`, the slots held when it begins: a slot that is held already
// (kept) is not taken again. Events with bytes rounded up to `alignment`. Pure: the same everywhere.
StepSchedule plan_step(const std::vector<StepEvent>& events, const HeldSlots& held, uint64_t alignment);

}  // namespace fsccl
