// Writes a plan in rounds out as one long plan without slots, for the verifier. Every round's steps
// have their own operands and ticks. kTickWindow ordinary buffers stand for the slots; if slots are
// mirrored, there are as many for each rank that sees them, and the owner's own are its private
// memory. The waits by which the engine keeps slots and lines from being reused too early become
// steps.
#pragma once
#include "plan/plan.h"

namespace fsccl {

Plan unroll(const Plan& plan);

}  // namespace fsccl
