// Runs other allocators on the same trace. General allocators (glibc, jemalloc, mimalloc) run for
// real, each preloaded into its own process. Sizes are divided so that the blocks fit in memory;
// the row says so. Policies for device memory are simulated, which the row says, too.
#pragma once
#include <string>
#include <vector>

#include "perf/pool/replay.h"

namespace fsccl::perf {

struct Peer {
  const char* name;
  const char* library;  // the library to preload, or null for the program's own allocator
  const char* symbol;   // a symbol that only this allocator has, or null for no check
};
const std::vector<Peer>& malloc_peers();

// Starts this program again with the peer preloaded, as `pool --peer NAME`, and returns the row
// that it measured.
ReplayRow run_peer(const Peer& peer, const std::string& file, const Trace& trace,
                   const ReplayOptions& options);
// Measures the row in the process that run_peer() starts.
ReplayRow replay_malloc(const Peer& peer, const Trace& trace, const ReplayOptions& options);

std::vector<ReplayRow> replay_policies(const Trace& trace, const ReplayOptions& options);

}  // namespace fsccl::perf
