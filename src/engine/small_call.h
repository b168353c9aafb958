// The fast path: a small call that the caller waits for, issued where nothing else is under way.
// The calling thread carries it out itself, without a place in the ring of operations. Its plan is
// one round of signals, waits, and copies and reductions of no more than 32 KiB: in the caller's
// memory, in slots, and out of peers' blocks of pools; between hosts, puts into mirrored slots.
//
// The runner (runner.h) carries out its steps as it does those of operations. The policy
// differs: the call looks a bounded number of times for a peer, and whatever is out of the
// ordinary (a peer that does not come, a peer that calls something else, a window that is not free,
// buffers that cannot be touched) ends the fast path. The call then goes on in the ring, from the
// step that it has come to; there it is waited for, failed and reported like every operation.
#pragma once
#include <array>

#include "engine/operation.h"

namespace fsccl {

struct SmallCall {
  static constexpr uint64_t kBytes = 32u << 10;  // the most bytes of a step

  const Plan* plan = nullptr;
  const OperationSettings* settings = nullptr;
  const Fingerprint* fingerprint = nullptr;  // its sequence is set by the engine
  std::array<std::byte*, 3> buffers{};       // the plan's buffers, by index; slots come behind them
  // The plan that asks where peers' buffers are, or null, and where this rank's published ones are.
  // It is another plan than `plan` where the call is foreseen (foresight.h).
  const Plan* asks = nullptr;
  std::array<Location, 2> published{};
};

// Returns true if a call of this plan may take the fast path.
bool small_enough(const Plan& plan);

// A small call on its way. The names are those of Operation, for the runner.
struct SmallCursor : Cursor {
  const SmallCall& call;
  const bool has_slots;
  int looks = 0;  // at peers that have not come, which are left

  const OperationSettings& how() const { return *call.settings; }
  std::byte* own(uint32_t buffer) const { return call.buffers[buffer]; }
  const Location& location(uint32_t i) const { return call.published[i]; }
};

}  // namespace fsccl
