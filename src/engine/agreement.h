// What the ranks of a communicator must have set alike, because it decides what they do together: compared when it is made.
#pragma once
#include "base/config.h"
#include "base/status.h"
#include "engine/meeting.h"

namespace fsccl {

// FSCCL_ERR_MISMATCH on all ranks where two differ. Uses the tick *tick and leaves the next one there.
Status agree_on_settings(const Meeting& meeting, const Config& mine, uint32_t* tick);

}  // namespace fsccl
