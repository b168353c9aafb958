// The pool of RMM itself, without a device (rmm/peer.cpp), on a trace: a peer for who has built it.
#pragma once
#include <string>

#include "perf/pool/replay.h"
#include "perf/pool/rmm/peer.h"

namespace fsccl::perf {

// Loads the library that rmm/build.sh made. Returns null, and *error says why, if it is no such
// library.
const rmm_peer* load_rmm(const std::string& library, std::string* error);
ReplayRow replay_rmm(const rmm_peer& peer, const Trace& trace, const ReplayOptions& options);

}  // namespace fsccl::perf
