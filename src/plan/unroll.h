// A plan in rounds written out as one long plan without slots, for the verifier: every round's
// steps with their own operands and ticks, kTickWindow ordinary buffers in place of the slots (of
// mirrored ones, as many for each rank that sees them: the owner's own is memory of its own), and
// the waits by which the engine keeps slots and lines from being reused too early.
#pragma once
#include "plan/plan.h"

namespace fsccl {

Plan unroll(const Plan& plan);

}  // namespace fsccl
