// The short measurement at the start of a communicator: ranks 0 and 1 exchange signals, move pieces through their slots and read
// each other's memory, about a millisecond in all; everybody takes over what rank 1 found, so that all choose plans alike. Not
// with more ranks than cores, where nothing would be learned but how long a change of context takes.
#pragma once
#include <cstdint>

#include "engine/meeting.h"
#include "plan/cost.h"

namespace fsccl {

// Uses ticks from *tick on and leaves the next unused one there, the same on all ranks. A peer that is lost meanwhile gives the
// defaults: the engine will find out.
Costs calibrate(const Meeting& meeting, uint32_t* tick);

}  // namespace fsccl
