// The parts of a unit whose ranks are on several hosts (unit_hosts.cpp): which rank acts for which,
// and the exchanges. Made with the unit.
#pragma once
#include <memory>
#include <vector>

#include "comm/hosts.h"
#include "unit/host/coded_gather.h"
#include "unit/host/coded_sum.h"
#include "unit/host/grad_reduction.h"

namespace fsccl {

struct HostSpan {
  Hosts* hosts = nullptr;
  bool by_hosts = true;  // sums are over the ranks of a host first
  // by rank of the shard_comm: the rank of the exchange (LaneExchange) that holds its pieces
  std::vector<int> holders;
  LaneExchange parameters;
  // gathers `parameters`, if the unit has a codec for them and this rank a lane
  std::unique_ptr<CodedGather> coded;
  std::unique_ptr<CodedSum> coded_sum;  // sums all gradients, if the unit has a codec for them
  Communicator* sums_among = nullptr;   // a lane, or all ranks; null: this rank exchanges no sums
  // the last stage of an unshard: `entered` for shared slots, `pull` for slots of one rank each
  PlannedUnit host_barrier, pull;
  int sum_owner = 0;                // rank of the host in whose slots this rank's sums end
  bool has_laneless_ranks = false;  // some rank of the host has no lane
  Plan empty_plan;                  // the plan of an operation that ends when others have ended
};

}  // namespace fsccl
