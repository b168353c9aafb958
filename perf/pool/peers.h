// Other allocators on the same trace. General ones (glibc, jemalloc, mimalloc) run for real, each
// in a process of its own that has it preloaded; sizes are divided so that the blocks fit in
// memory, which the row says. Policies for device memory are simulated, which it says too.
#pragma once
#include <string>
#include <vector>

#include "perf/pool/replay.h"

namespace fsccl::perf {

struct Peer {
  const char* name;
  const char* library;  // to preload; null: what the program has anyway
  const char* symbol;   // that only this allocator has; null: no check
};
const std::vector<Peer>& malloc_peers();

// Starts this program again with the peer preloaded, as `pool --peer NAME`, and returns what it
// found.
ReplayRow run_peer(const Peer& peer, const std::string& file, const Trace& trace,
                   const ReplayOptions& options);
// In that process.
ReplayRow replay_malloc(const Peer& peer, const Trace& trace, const ReplayOptions& options);

std::vector<ReplayRow> replay_policies(const Trace& trace, const ReplayOptions& options);

}  // namespace fsccl::perf
