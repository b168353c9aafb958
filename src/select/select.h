// Chooses the plan that carries out a collective. The plans that can carry it out are the
// candidates. The cost model (plan/cost.h) prices each, and the cheapest wins, unless a rule
// (rules.h) names another one. If slots are mirrored (plan.h), no rank can touch a peer's buffer,
// and only plans through slots are candidates.
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
  // If this is a number, payloads of at most so many bytes are sent eagerly through slots, and no
  // others are.
  int64_t eager_bytes = kConfigAuto;
  // The system reads peers' private memory wherever that is possible.
  bool always_read = false;
  std::shared_ptr<const std::vector<Rule>> rules;          // may be null
  std::shared_ptr<const std::vector<NativePrice>> native;  // may be null
  HostShape host_shape;
  // Checksums are checked when payloads come out of slots, so no rank touches another's buffers.
  bool only_slots = false;
  bool signals_one = true;  // the transport has signals for one peer, which plans in steps need
  bool sockets = false;     // messages between hosts pass through the system's TCP

  const Rule* rule(const Rule* (*which)(const std::vector<Rule>&, const RuledCall&), OpCode op,
                   uint64_t bytes) const {
    return rules ? which(*rules, {op, bytes, host_shape}) : nullptr;
  }
};

// A call with a root on memory that peers cannot touch rarely asks for addresses
// (engine/foresight.h) if its bytes go through slots in at most so many rounds. With more rounds
// that saves little, and a program that changes to memory of pools would lose more.
inline constexpr uint32_t kMostRoundsUnasked = 8;

struct Selection {
  Plan plan;
  // The plan that runs instead of `plan` if peers' buffers cannot be touched. It has no steps if
  // `plan` touches no peer's buffer.
  Plan fallback;
  bool reads = false;  // private memory counts as touchable, because the system reads it
  // The predicted time of a call that may be alone or one of many in a row, for buffers outside of
  // pools.
  double ns = 0;
  std::string why;  // the reason of the choice; only if the caller asked for the candidates
};

struct Candidate {
  std::string plan;
  uint64_t chunk = 0;  // bytes of a piece, as rules name them; 0: all bytes in one piece
  const char* memory;  // the memory of the buffers for which it is: "any", "pool", "private"
  double ns = 0;       // predicted
  bool chosen = false;
};

// Returns the bytes of the larger buffer, as nccl-tests and rules count them.
uint64_t call_bytes(OpCode op, const Shape& shape);

// `considered`, if not null, gets all candidates. A rule that cannot be followed is not logged
// then.
Selection select(OpCode op, const Shape& shape, const SelectOptions& options,
                 std::vector<Candidate>* considered = nullptr);

}  // namespace fsccl
