// Chooses the plan that carries out a collective. Where more than one can, the cost model
// (plan/cost.h) prices each and the cheapest wins, unless a rule (rules.h) says otherwise. Where
// slots are mirrored (plan.h), no peer's buffer can be touched, and none but slots are considered.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "plan/collectives.h"
#include "plan/cost.h"
#include "plan/fingerprint.h"
#include "select/native_price.h"
#include "select/rules.h"

namespace fsccl {

struct SelectOptions {
  Costs costs;
  // a number: payloads up to it, and no others, go through slots at once
  int64_t eager_bytes = kConfigAuto;
  // peers' own memory is read by the system wherever that is possible
  bool always_read = false;
  std::shared_ptr<const std::vector<Rule>> rules;          // may be null
  std::shared_ptr<const std::vector<NativePrice>> native;  // may be null
  HostShape host_shape;
  // payloads are checked as they come out of slots: no rank touches another's buffers
  bool only_slots = false;

  const Rule* rule(const Rule* (*which)(const std::vector<Rule>&, const RuledCall&), OpCode op,
                   uint64_t bytes) const {
    return rules ? which(*rules, {op, bytes, host_shape}) : nullptr;
  }
};

struct Selection {
  Plan plan;
  // runs instead of `plan` where peers' buffers cannot be touched; without steps if `plan` needs
  // none
  Plan fallback;
  bool reads = false;  // peers' own memory is read by the system: then it counts as touchable
  // predicted (of a call that may be alone or one of many in a row), for buffers outside pools
  double ns = 0;
  std::string why;  // the reason of the choice; filled only for callers that consider it
};

struct Candidate {
  std::string plan;
  uint64_t chunk = 0;  // bytes of a slot that a round uses, as rules have it; 0: all at once
  const char* memory;  // "any", "pool", "private": which buffers it is for
  double ns = 0;       // predicted
  bool chosen = false;
};

// Returns the bytes of the larger buffer, as nccl-tests and rules count them.
uint64_t call_bytes(OpCode op, const Shape& shape);

// `considered`, if not null, gets all candidates; then a rule that cannot be followed is not
// announced.
Selection select(OpCode op, const Shape& shape, const SelectOptions& options,
                 std::vector<Candidate>* considered = nullptr);

}  // namespace fsccl
