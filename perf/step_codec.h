// fsccl-perf step --codec compares three ways to gather in FSDP steps: without a codec, without a
// codec but with parameters kept between forward and backward (which takes as much memory as the
// copies of a codec), and with the codec. The three take turns step by step, so that all of them
// run on one machine in the same minutes. Shards change from step to step by about as much as
// training changes them at its highest rate.
#pragma once
#include <cstdint>

#include "model.h"
#include "session.h"
#include "step.h"

namespace fsccl::perf {

// Returns the number of wrong elements over all ranks.
uint64_t run_step_codec(Session& session, const Model& model, const StepOptions& options);

}  // namespace fsccl::perf
