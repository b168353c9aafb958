// The proof that planned steps are safe, on purpose nothing like the planner: it follows a step and
// the next, so that each slot meets what comes before and after the step boundary, draws the graph
// of what each piece of work waits for, and compares the slots in pairs.
#pragma once
#include <string>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

// Empty, or what is wrong: two slots that are there at once overlap; work on one slot is not
// ordered behind work on an earlier one with some of the same bytes; a stable key has two offsets;
// an offset is not aligned, or beyond the extent. Occurrences of one key are not compared for
// order: where nothing orders them, no offset helps, and the region makes the stream wait and says
// so. `held`: when the step begins.
std::string step_problem(const StepSchedule& schedule, const HeldSlots& held, uint64_t alignment);
// The same of steps that were planned together: of each step followed by each; a stable key has one
// offset in all of them, and what two steps take before they part has one, too.
std::string steps_problem(const JointPlan& plan, const HeldSlots& held, uint64_t alignment);

}  // namespace fsccl
