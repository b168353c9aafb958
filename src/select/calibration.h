// The short measurement at the start of a communicator: rank 0 and another exchange signals, move
// pieces through their slots and read each other's memory. This takes milliseconds. Everybody takes
// over what the other found, so that all choose plans alike. It ends early where the two share a
// core: nothing can be learned there but how long a change of context takes. Where the other knows
// the costs from earlier starts (kept_costs.h), the two only find out whether they may read.
//
// An exchange waits for a core where more ranks than cores run, and the measurement would take as
// long as the rest of the start. One rank then measures alone how fast it copies, and all other
// costs are those of the table.
#pragma once
#include <cstdint>

#include "plan/cost.h"
#include "select/kept_costs.h"
#include "select/startup.h"

namespace fsccl {

// `share_cores`: more ranks than cores run; alike on all ranks. Uses ticks from *tick on and leaves
// the next unused one there, the same on all ranks. Where nothing is measured, also because a peer
// is lost meanwhile, which the engine will find out, it returns `fallback`. `kept`: of `other`;
// null: nothing is kept.
Costs calibrate(const Startup& startup, int other, const Costs& fallback, bool share_cores,
                uint32_t* tick, KeptCosts* kept = nullptr);

}  // namespace fsccl
