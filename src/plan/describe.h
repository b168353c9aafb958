// Writes plans as text, one line a step, for errors and `fsccl_explain`.
#pragma once
#include <string>

#include "plan/plan.h"

namespace fsccl {

// Returns a text like "copy 12 x float32: output[64] <- input[0] of rank 3".
std::string describe(const Plan& plan, const Step& step);
// Returns the name, the buffers that are present, and the numbered steps.
std::string describe(const Plan& plan);

}  // namespace fsccl
