// Writes a plan in rounds as one long plan without slots, for the verifier. The steps of every
// round have their own operands and ticks. kTickWindow ordinary buffers stand for the slots. If
// slots are mirrored, there are so many for each rank that sees them, and the owner's own slots are
// its private memory. The waits by which the engine prevents an early reuse of slots and lines
// become steps.
#pragma once
#include "plan/plan.h"

namespace fsccl {

Plan unroll(const Plan& plan);

}  // namespace fsccl
