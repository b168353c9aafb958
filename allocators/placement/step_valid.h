// Proves that planned steps are safe, on purpose by means that are nothing like the planner's. It
// follows a step and the next one, so that each slot meets what comes before and after the step
// boundary, makes the graph of what each piece of work waits for, and compares the slots in pairs.
#pragma once
#include <string>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

// Returns what is wrong, or an empty text. Wrong are: two slots that are there at once and overlap;
// work on a slot that is not ordered behind work on an earlier slot with some of the same bytes; a
// stable key with two offsets; an offset that is not aligned, or beyond the extent. Occurrences of
// one key are not compared for order: if nothing orders them, no offset helps, and the region makes
// the stream wait and says so. `held`: the slots that are held when the step begins.
std::string step_problem(const StepSchedule& schedule, const HeldSlots& held, uint64_t alignment);
// Checks the same of steps that were planned together, for each step followed by each. A stable key
// must have one offset in all of them, and a slot that two steps take before they part must, too.
std::string steps_problem(const JointPlan& plan, const HeldSlots& held, uint64_t alignment);

}  // namespace fsccl
