// The parts of a unit whose ranks are on several hosts, or which has a codec everywhere
// (unit_hosts.cpp): the ranks for which each rank acts, the exchanges between hosts, and the plans
// of their last stages. They are made with the unit.
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
  bool by_hosts = true;  // sums are made in two levels: first over the ranks of a host
  // By rank of the shard_comm: the rank of the exchange that moves its pieces (LaneExchange).
  std::vector<int> holders;
  LaneExchange parameters;
  // Gathers the parameters if the unit has a codec for them and this rank has a lane.
  std::unique_ptr<CodedGather> coded;
  // By gradient slot: sums its gradients if the unit has a codec for them. Null: there are none.
  std::vector<std::unique_ptr<CodedSum>> coded_sums;
  Communicator* sums_among = nullptr;  // a lane or all ranks; null if this rank exchanges no sums
  // The plans of the last stage of an unshard. host_barrier: slots are shared, so the ranks of the
  // host only wait for each other. pull: slots are private, so the ranks pull from each other.
  PlannedUnit host_barrier, pull;
  int sum_owner = 0;  // the rank of this host in whose slots this rank's sums are made
  bool has_laneless_ranks = false;  // some rank of this host has no lane
  Plan empty_plan;                  // the plan of an operation that only waits for its stages
};

}  // namespace fsccl
