// Turns known steps into the requests of one packing problem. The steps are laid one behind the
// other on one time line that repeats. Any step may follow any other, so a slot whose work may go
// on beyond the end of its step must not share bytes with the first slots of any step. If there is
// such a slot, the line holds every pair of steps, and otherwise each step once. Slots that are
// held between steps stay where they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocators/placement/planner.h"
#include "allocators/placement/step_schedule.h"

namespace fsccl {

struct StepRequests {
  struct Taking {
    size_t step;
    int64_t event;  // the event that takes it; -1: it is held when the step begins
  };
  std::vector<SlotRequest> list;
  std::vector<Taking> place;  // per request
  int64_t events = 0;         // events of the whole line
};

// Returns the requests of a plan whose steps have their events, and on which compare() was called.
StepRequests step_requests(const JointPlan& plan, const HeldSlots& held);

}  // namespace fsccl
