// The agreement before the ranks of a communicator begin: they compare whether all can begin, and
// whether the settings that must be the same are the same on all ranks.
#pragma once
#include "base/config.h"
#include "base/status.h"
#include "select/startup.h"

namespace fsccl {

// Checks that the rings of a channel have the sizes that fsccl/transport.h asks for.
Status check_slots(const Channel& channel);

// `prepared` says whether this rank can begin. If a rank cannot, it gets its own error, and the
// other ranks get FSCCL_ERR_OUT_OF_MEMORY. If settings differ, all ranks get FSCCL_ERR_MISMATCH.
// Uses one or two ticks from *tick on, the same number on all ranks, and sets *tick to the next
// one.
Status agree_to_begin(const Startup& startup, const Config& mine, Status prepared, uint32_t* tick);

}  // namespace fsccl
