// The start of a job: messages, sockets and time of the rendezvous and of the tree of links. The
// bootstrap itself is run, in a simulation (start/simulated_start.h), for as many ranks as the job
// has, or for kSimulatedRanks of them that stand for more: the first rank with all its children,
// ranks below it with all of theirs, and ranks without. The difference between two simulations is
// what a further rank costs; a test simulates all ranks of larger jobs against it.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "forecast/machine.h"

namespace fsccl::forecast {

// The processor time of a call of the system in the bootstrap, with the library's own work around
// it, where the ranks share a host (Unix sockets) and where they do not (TCP). The processor time
// of a byte that a rank takes or sends, with its checksum. The processor time of a rank beside its
// calls, such as for its service thread. The time from an event to the thread that waits for it.
// docs/forecast.md says how these were measured.
inline constexpr double kUnixCallNs = 3'200, kTcpCallNs = 5'600, kByteNs = 1.5, kOwnNs = 550'000;
inline constexpr int64_t kWakeNs = 20'000;
// Ranks that are simulated at most: a tree whose first rank has 8 children with 8 each.
inline constexpr int kSimulatedRanks = 73;

struct Startup {
  int simulated_ranks = 0;
  int depth = 0;             // depth of the tree: steps from the first rank to the farthest
  int meeting_sockets = 0;   // the most at once of the process where the ranks meet
  int inner_sockets = 0;     // the most at once of a rank with all its children
  int leaf_sockets = 0;      // the same for a rank without
  int64_t messages = 0;      // sum over all ranks
  int inner_messages = 0;    // that a rank with all its children sends
  double list_bytes = 0;     // size of the list of members, which goes over every link once
  double rendezvous_ns = 0;  // until all have registered
  double list_ns = 0, tree_ns = 0;
  double processor_ns = 0;  // processor time of a rank, the mean
  double shared_ns = 0;     // time of a host's processors for all its ranks, where ranks share them
  double ns() const { return std::max(kOwnNs + rendezvous_ns + list_ns + tree_ns, shared_ns); }
};

// `call_ns`: processor time of a call of the system; 0: as above.
Result<Startup> startup_of(int ranks, const Machine& machine, double call_ns);

}  // namespace fsccl::forecast
