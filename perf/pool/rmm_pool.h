// Runs RMM's own pool on a trace, without a device (rmm/peer.cpp), if the user has built it.
#pragma once
#include <string>

#include "perf/pool/replay.h"
#include "perf/pool/rmm/peer.h"

namespace fsccl::perf {

// Loads the library that rmm/build.sh made. For another library it returns null, and *error says
// why.
const rmm_peer* load_rmm(const std::string& library, std::string* error);
ReplayRow replay_rmm(const rmm_peer& peer, const Trace& trace, const ReplayOptions& options);

}  // namespace fsccl::perf
