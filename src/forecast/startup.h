// The start of a job: messages, sockets and time of the rendezvous and of the tree of links. The
// bootstrap itself runs in a simulation (start/simulated_start.h), for as many ranks as the job
// has, but for kSimulatedRanks at most. These stand for a larger job: they include the first rank
// with all its children, ranks below it with all of theirs, and ranks without children. The
// difference between two simulations is the cost of a further rank. A test compares the result with
// simulations of all ranks of larger jobs.
#pragma once
#include <algorithm>
#include <cstdint>

#include "base/status.h"
#include "forecast/machine.h"

namespace fsccl::forecast {

// kUnixCallNs and kTcpCallNs are the processor times of a system call in the bootstrap, with the
// library's own work around it: the first if the ranks share a host and use Unix sockets, the
// second if they use TCP. kByteNs is the processor time of a byte that a rank sends or receives,
// with its checksum. kOwnNs is the processor time of a rank apart from its calls, such as for its
// service thread. kWakeNs is the time from an event until the thread that waits for it runs.
// docs/forecast.md says how these were measured.
inline constexpr double kUnixCallNs = 3'200, kTcpCallNs = 5'600, kByteNs = 1.5, kOwnNs = 550'000;
inline constexpr int64_t kWakeNs = 20'000;
// The most ranks that are simulated: a tree whose first rank has 8 children with 8 each.
inline constexpr int kSimulatedRanks = 73;

struct Startup {
  int simulated_ranks = 0;
  int depth = 0;             // depth of the tree: steps from the first rank to the farthest
  int meeting_sockets = 0;   // most sockets at a time, of the process of the rendezvous
  int inner_sockets = 0;     // the same, of a rank with all its children
  int leaf_sockets = 0;      // the same, of a rank without children
  int64_t messages = 0;      // sum over all ranks
  int inner_messages = 0;    // messages of a rank with all its children
  double list_bytes = 0;     // size of the list of members, which crosses each link once
  double rendezvous_ns = 0;  // time until all have registered
  double list_ns = 0, tree_ns = 0;
  double processor_ns = 0;  // processor time of a rank (mean)
  // time that a host's processors need for all its ranks, if the ranks share them
  double shared_ns = 0;
  double ns() const { return std::max(kOwnNs + rendezvous_ns + list_ns + tree_ns, shared_ns); }
};

// `call_ns` is the processor time of a system call; 0 stands for kUnixCallNs or kTcpCallNs.
Result<Startup> startup_of(int ranks, const Machine& machine, double call_ns);

}  // namespace fsccl::forecast
