// What a unit has whose ranks are on several hosts (unit_hosts.cpp): who acts for whom, and what is
// exchanged. Made with the unit.
#pragma once
#include <vector>

#include "comm/hosts.h"
#include "unit/host/grad_reduction.h"

namespace fsccl {

struct HostSpan {
  Hosts* hosts = nullptr;
  bool by_hosts = true;  // sums are over the ranks of a host first
  // of what this rank exchanges (LaneExchange), by rank of the shard_comm
  std::vector<int> holders;
  LaneExchange parameters;
  Communicator* sums_among = nullptr;  // who exchanges sums: a lane, or all; null: not this rank
  // the last stage of an unshard: slots are shared; or each rank's own
  PlannedUnit entered, spread;
  int carrier = 0;       // rank of the host in whose slots this rank's sums end
  bool carries = false;  // some rank of the host has no lane
  Plan nothing;          // of an operation that ends when others have
};

}  // namespace fsccl
