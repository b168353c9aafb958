// The short measurement at the start of a communicator: rank 0 and one other rank exchange signals,
// move pieces through their slots and read each other's memory. This takes milliseconds. All ranks
// use the findings of the other rank, so that all choose the same plans. The measurement ends early
// if
// the two ranks share a core, because it would only find the time of a change of context. If the
// other rank knows the costs from earlier starts (kept_costs.h), the two only find out whether they
// may read each other's memory.
//
// If more ranks than cores run, an exchange waits for a core, and the measurement would take as
// long as the rest of the start. One rank then measures alone how fast it copies, and all other
// costs are those of the table.
#pragma once
#include <cstdint>

#include "plan/cost.h"
#include "select/kept_costs.h"
#include "select/startup.h"

namespace fsccl {

// `share_cores` says that more ranks than cores run; it is the same on all ranks. Uses ticks from
// *tick on and leaves the next unused one there, the same on all ranks. Returns `fallback` if
// nothing was measured. A peer may have been lost meanwhile; the engine will find that out. `kept`
// has the kept costs of the rank `other`, or is null if nothing is kept.
Costs calibrate(const Startup& startup, int other, const Costs& fallback, bool share_cores,
                uint32_t* tick, KeptCosts* kept = nullptr);

}  // namespace fsccl
