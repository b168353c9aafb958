// Measures this machine in a second, for a forecast of ranks here.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "fsccl/fsccl.h"

// "machine" of a forecast's configuration (insight.h): cores and links as the topology says, fp32
// operations of a core by this program's own multiplication of matrices, memory by a copy, the
// costs of plans as two ranks measure them when a communicator starts, and what a byte of a unit
// takes in a gather and in a reduction of these types. Where `ranks` are more than the cores, also
// how long a rank waits for its turn. Nothing, with a line on the standard error, where that cannot
// be.
std::optional<nlohmann::json> measure_this_machine(fsccl_dtype_t wire, fsccl_dtype_t reduce,
                                                   int ranks);
