// The time of a unit's communication: its gather, its reduction, and the sum over replicas, for one
// rank that stands for all.
//
// The library's own builders make the plans of a host for two representative ranks, and the cost
// model (plan/cost.h) follows them, as select() does. Between hosts a plan is one list of steps for
// each peer, all alike, so its price is a straight line in the number of hosts: above kMostFollowed
// it is priced for two smaller numbers with the same bytes for each peer, and extended. The effort
// for a price therefore does not grow with the ranks. nccl.h prices NCCL.
#pragma once
#include <string>

#include "forecast/machine.h"
#include "forecast/model.h"
#include "forecast/step_config.h"
#include "layout/layout.h"

namespace fsccl::forecast {

// The ranks that share a unit's shards, or that have copies of one shard: full hosts, or a part of
// one.
struct Group {
  int ranks = 1, hosts = 1, per_host = 1;
};
Group shard_group(const StepConfig& setup, const Machine& machine);
Group replica_group(const StepConfig& setup, const Machine& machine);
// Returns the bytes of a slot between the hosts of a group.
uint64_t lane_slot_bytes(const Group& group, const Machine& machine);

struct Carried {
  double ns = 0;       // from a common begin until all have ended
  double busy_ns = 0;  // part of it in which a rank's own processor works
  double within_bytes =
      0;  // that a rank moves inside its host: over the links, or in memory that ranks share
  double between_bytes = 0;  // that a rank receives from other hosts
  std::string how;           // the plans, or "nccl ring"

  Carried& operator+=(const Carried& other);
};

// A unit's layout over the ranks of a group, and its slots.
struct UnitLayout {
  static constexpr int kMostRagged =
      4096;  // ranks up to which ragged layouts are planned; beyond, shards count as equal ones
  Layout layout;
  SlotMap parameters, gradients;
  uint64_t elements = 0;
  uint64_t shard_elements = 0;  // elements of the rank that holds most
  uint64_t gradient_extra =
      0;  // bytes of a rank's gradient slot: fp32 sums of its host that go to others

  // `sums_in_slots`: sums of a host that go to other hosts lie behind the gradients, as in host
  // memory.
  static Result<UnitLayout> make(const ModelUnit& unit, const StepConfig& setup, const Group& group,
                                 bool sums_in_slots);
};

struct UnitPrice {
  Carried gather, reduce, replicas;
};
UnitPrice price_unit(const UnitLayout& places, const StepConfig& setup, const Machine& machine);

// Returns true if the ranks of a host read one slot of parameters, and false if each has its own.
inline bool shares_slots(const Machine& machine) { return !machine.gpu; }

}  // namespace fsccl::forecast
