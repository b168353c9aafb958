// The time of a unit's communication, for one rank that stands for all: its gather, its reduction,
// and the sum over replicas.
//
// Inside a host, the library's own builders make the plans of two representative ranks, and the
// cost model (plan/cost.h) follows them, as in select(). Between hosts, a plan has the same steps
// for each peer, so its price is linear in the number of hosts. For more than kMostFollowed hosts,
// two smaller numbers with the same bytes for each peer are priced, and the line through them is
// extended. The effort for a price therefore does not grow with the ranks. nccl.h prices NCCL.
#pragma once
#include <optional>
#include <string>

#include "forecast/machine.h"
#include "forecast/model.h"
#include "forecast/step_config.h"
#include "layout/layout.h"

namespace fsccl::forecast {

// Ranks that share a unit's shards, or ranks that have copies of one shard. They fill their hosts,
// or lie on a part of one host.
struct Group {
  int ranks = 1, hosts = 1, per_host = 1;
};
Group shard_group(const StepConfig& setup, const Machine& machine);
Group replica_group(const StepConfig& setup, const Machine& machine);
// Returns the size of a slot that carries bytes between the hosts of a group.
uint64_t lane_slot_bytes(const Group& group, const Machine& machine);

struct Carried {
  double ns = 0;       // time from the common beginning until all have ended
  double busy_ns = 0;  // part of `ns` in which a rank's own processor works
  double within_bytes =
      0;  // bytes that a rank moves inside its host, over links or in shared memory
  double between_bytes = 0;  // bytes that a rank receives from other hosts
  std::string how;           // names of the plans, or "nccl ring"

  Carried& operator+=(const Carried& other);
};

// A unit's layout over the ranks of a group, and its slots.
struct UnitLayout {
  static constexpr int kMostRagged =
      4096;  // up to so many ranks, ragged layouts are planned; for more, shards count as equal
  Layout layout;
  SlotMap parameters, gradients;  // a frozen parameter has a place of 0 bytes among the gradients
  uint64_t elements = 0;
  uint64_t shard_elements = 0;  // elements of the rank that holds most

  // The parameters that are not frozen, laid out as if the unit had no others, because the plans of
  // reductions leave frozen ones out. `shard_elements` counts those of the rank that holds most of
  // them in the unit's own layout.
  struct Reduced {
    std::optional<Layout> layout;  // none: all parameters are frozen
    SlotMap slots;
    uint64_t elements = 0, shard_elements = 0;
  } reduced;
  uint64_t gradient_extra =
      0;  // bytes behind a rank's gradients in its slot: fp32 sums of its host for other hosts

  // `sums_in_slots` is true if the sums of a host for other hosts lie behind the gradients, as they
  // do in host memory.
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
