// What a unit has whose ranks are on several hosts (unit_hosts.cpp): who acts for whom, and what is exchanged. Made with the unit.
#pragma once
#include <vector>

#include "engine/hosts.h"
#include "unit/grad_reduction.h"

namespace fsccl {

struct HostSpan {
  Hosts* hosts = nullptr;
  bool by_hosts = true;  // sums are
  // Of each rank of the host, the ranks of the shard_comm that it acts for.
  std::vector<std::vector<int>> own;      // itself
  std::vector<std::vector<int>> brought;  // those of other hosts that its lane brings
  std::vector<std::vector<int>> summed;   // those whose sums go by its lane
  std::vector<int> holders;               // of what this rank exchanges (LaneExchange), by rank of the shard_comm
  LaneExchange parameters;
  PlannedUnit entered, spread, spread_writable;  // the last stage of an unshard: slots are shared; or each rank's own
  int carrier = 0;                               // rank of the host in whose slots this rank's sums end
  bool carries = false;                          // some rank of the host has no lane
  Plan nothing;                                  // of an operation that ends when others have
};

}  // namespace fsccl
