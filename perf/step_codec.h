// fsccl-perf step --codec: the gathers of FSDP steps without a codec, without one but with what
// forward gathered kept for backward (which takes as much memory as a codec's copies), and with the
// codec, side by side: step by step in turn, on one machine in the same minutes. Shards change from
// step to step by about as much as training changes them at its highest rate.
#pragma once
#include <cstdint>

#include "model.h"
#include "session.h"
#include "step.h"

namespace fsccl::perf {

// Returns the number of wrong elements over all ranks.
uint64_t run_step_codec(Session& session, const Model& model, const StepOptions& options);

}  // namespace fsccl::perf
