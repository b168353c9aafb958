// Which plan carries out a collective. Where more than one can, the cost model (plan/cost.h) prices each and the cheapest wins.
// Where slots are mirrored (plan.h), no peer's buffer can be touched, and none but slots are considered.
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/fingerprint.h"
#include "plan/collectives.h"
#include "plan/cost.h"

namespace fsccl {

struct SelectOptions {
  Costs costs;
  int64_t eager_bytes = kConfigAuto;  // a number: payloads up to it, and no others, go through slots at once
  bool always_read = false;           // peers' own memory is read by the system wherever that is possible
};

struct Selection {
  Plan plan;
  Plan otherwise;      // runs instead of `plan` where peers' buffers cannot be touched; without steps if `plan` needs none
  bool reads = false;  // peers' own memory is read by the system: then it counts as touchable
};

struct Candidate {
  std::string plan;
  uint64_t chunk = 0;  // bytes a round; 0: all at once
  const char* memory;  // "any", "pool", "private": which buffers it is for
  double ns = 0;       // predicted
  bool chosen = false;
};

// `considered`, if not null, gets all candidates.
Selection select(OpCode op, const Shape& shape, const SelectOptions& options, std::vector<Candidate>* considered = nullptr);

}  // namespace fsccl
