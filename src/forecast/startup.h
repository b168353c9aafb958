// The start of a job: what the rendezvous and its tree cost, counted by the rules that the ranks
// follow (bootstrap/tree_steps.h) for ranks that stand for all: the first, one with children, and
// the last.
#pragma once
#include <cstdint>

#include "base/status.h"
#include "forecast/machine.h"

namespace fsccl::forecast {

struct Startup {
  int depth = 0;         // depth of the tree: steps from the first rank to the farthest
  int root_sockets = 0;  // sockets of the first rank, once the tree stands: listeners and links
                         // registrar's, and its links
  int inner_sockets = 0, leaf_sockets = 0;
  int registrar_connections = 0;  // that the registrar takes, one after the other
  int64_t messages = 0;           // messages of all ranks together
  int inner_messages = 0;         // that one rank with children sends
  double list_bytes = 0;          // bytes of the list of members, which goes over every link once
  double registrar_ns = 0, list_ns = 0, tree_ns = 0;
  double ns() const { return registrar_ns + list_ns + tree_ns; }
};

// `handshake_ns`: what the registrar's thread takes for one rank.
Startup startup_of(int ranks, const Machine& machine, double handshake_ns);

}  // namespace fsccl::forecast
