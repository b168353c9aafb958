// Before the ranks of a communicator begin: whether all can, and whether they have set alike what
// decides what they do together.
#pragma once
#include "base/config.h"
#include "base/status.h"
#include "select/startup.h"

namespace fsccl {

// `prepared`: whether this rank can begin. If one cannot, that is its error, and
// FSCCL_ERR_OUT_OF_MEMORY on the others; FSCCL_ERR_MISMATCH on all ranks where settings differ.
// Uses the tick *tick, or two, the same on all, and leaves the next one there.
Status agree_to_begin(const Startup& startup, const Config& mine, Status prepared, uint32_t* tick);

}  // namespace fsccl
