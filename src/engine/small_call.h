// The fast path: a small call that the caller waits for, issued while nothing else is under way.
// The calling thread carries it out itself, without a place in the ring of operations. Its plan is
// one round of signals, waits, and copies and reductions of no more than 32 KiB. These work in the
// caller's memory, in slots, and out of peers' blocks of pools; between hosts there are puts into
// mirrored slots.
//
// The runner (runner.h) carries out its steps like those of operations. The policy differs: the
// call looks a bounded number of times for a peer, and anything unusual ends the fast path. This is
// a peer that does not come, a peer that calls something else, a window that is not free, or a
// buffer that cannot be touched. The call then goes on in the ring, from the step that it has
// reached. There it is waited for, fails and is reported like every operation.
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
  // The plan whose enter signals have the locations of buffers, or null, and the locations of this
  // rank's published buffers. It differs from `plan` if the result was foreseen (foresight.h).
  const Plan* asks = nullptr;
  std::array<Location, 2> published{};
};

// Returns true if a call of this plan may take the fast path.
bool small_enough(const Plan& plan);

// The state of a small call. The names are those of Operation, for the runner.
struct SmallCursor : Cursor {
  const SmallCall& call;
  const bool has_slots;
  int looks = 0;  // the number of polls for peers that are left

  const OperationSettings& how() const { return *call.settings; }
  std::byte* own(uint32_t buffer) const { return call.buffers[buffer]; }
  const Location& location(uint32_t i) const { return call.published[i]; }
};

}  // namespace fsccl
