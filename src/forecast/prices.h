// The time of a unit's communication, for one rank that stands for all: its gather, its reduction,
// and the sum over replicas. By parameter, each gradient is reduced by an operation of its own, and
// a GPU gathers each parameter so, too: each of these waits for the peers.
//
// Inside a host, the library's own builders make the plans of two representative ranks, and the
// cost model (plan/cost.h) follows them, as in select(). Between hosts, a plan has the same steps
// for each peer, so its price is linear in the number of hosts. For more than kMostFollowed hosts,
// two smaller numbers with the same bytes for each peer are priced, and the line through them is
// extended. The effort for a price therefore does not grow with the ranks. nccl.h prices NCCL.
#pragma once
#include <string>
#include <vector>

#include "forecast/machine.h"
#include "forecast/step_config.h"
#include "forecast/unit_layout.h"

namespace fsccl::forecast {

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

struct UnitPrice {
  Carried gather, reduce, replicas;
  std::vector<Carried> reduce_of;  // by parameter: the parts of `reduce`
  // Multiplies all times.
  void scale(double factor);
  // Returns the reduction of a parameter, or of the whole unit for Event::kAll.
  Carried reduction(size_t param) const;
};
UnitPrice price_unit(const UnitLayout& places, const StepConfig& setup, const Machine& machine);

// Returns true if the ranks of a host read one slot of parameters, and false if each has its own.
inline bool shares_slots(const Machine& machine) { return !machine.gpu; }

}  // namespace fsccl::forecast
