// The page of `fsccl-perf step --report`. It shows the time by phase and rank, memory over time
// beside its lower bound, and the units.
#pragma once
#include <string>

#include "html.h"
#include "machine.h"
#include "report.h"

namespace fsccl::perf {

// `limits` are what the machine can do at the sizes of the units' slots.
std::string step_page(const StepReport& report, const std::vector<MachineLimit>& limits);

}  // namespace fsccl::perf
