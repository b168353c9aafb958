// The page of `fsccl-perf step --report`: time per phase and rank, memory over time against what
// must be there, and units.
#pragma once
#include <string>

#include "html.h"
#include "machine.h"
#include "report.h"

namespace fsccl::perf {

// `limits`: what the machine can do at the sizes of the units' slots.
std::string step_page(const StepReport& report, const std::vector<MachineLimit>& limits);

}  // namespace fsccl::perf
