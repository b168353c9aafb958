// Measures this machine for a forecast of ranks that run on it.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "fsccl/fsccl.h"

// Returns the value of "machine" in the configuration of a forecast (insight.h). Cores and links
// are those of the topology. The fp32 operations of a core come from a multiplication of matrices
// in this program, the speed of memory from a copy, and the costs of plans from the measurements of
// two ranks when their communicator starts. Gathers and reductions of units with these types give
// the time that a byte of a unit takes. Two ranks run them, or `ranks` if these are more than the
// cores, so that they wait for their turns (at most 16 or twice the cores, whichever is more).
// Returns nothing, after a line on the standard error, if a measurement fails.
//
// Cores and memory are those that this process may use, which a container may limit.
std::optional<nlohmann::json> measure_this_machine(fsccl_dtype_t wire, fsccl_dtype_t reduce,
                                                   int ranks);
