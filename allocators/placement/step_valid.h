// Proves that planned steps are safe, by means that are on purpose nothing like the planner's.
// Follows a step and the next one, so that slots on both sides of the step boundary are compared,
// makes the graph of what each piece of work waits for, and compares the slots in pairs.
#pragma once
#include <string>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

// Returns what is wrong, or an empty text. Wrong are: two slots that are there at once and overlap;
// work on a slot that is not ordered behind work on an earlier slot with some of the same bytes; a
// stable key with two offsets; an offset that is not aligned, or beyond the extent. The order of
// the occurrences of one key is not checked: if nothing orders them, no choice of offsets helps,
// and the region makes the stream wait and says so in the grant. `held` has the slots that are held
// when the step begins.
std::string step_problem(const StepSchedule& schedule, const HeldSlots& held, uint64_t alignment);
// Checks the same for steps that were planned together, for each step followed by each one. A
// stable key must have one offset in all of them, and so must a slot that two steps take before
// they part.
std::string steps_problem(const JointPlan& plan, const HeldSlots& held, uint64_t alignment);

}  // namespace fsccl
