#include "engine/tick_window.h"

#include "base/hash.h"
#include "engine/checksums.h"

namespace fsccl {

// Returns the next round to confirm before the round at `tick`. A quiet round cannot be confirmed
// by itself, because some peers did not signal in it; a later round confirms it. If no later round
// is pending, the quiet rounds are dropped without a look at their signals. LastHeard keeps their
// number so low that the window stays valid.
TickWindow::Round* TickWindow::next_to_confirm(uint32_t tick) {
  if (pending_count_ == 0 || static_cast<int32_t>(oldest_in_use_ - tick) >= 0) return nullptr;
  to_confirm_ = 0;
  const auto at = [this](uint32_t i) -> Round& {
    return rounds_[(pending_begin_ + i) % kTickWindow];
  };
  while (to_confirm_ + 1 < pending_count_ && at(to_confirm_).quiet) to_confirm_++;
  return &at(to_confirm_);
}

void TickWindow::confirm() {
  const Round& round = pending(to_confirm_);
  if (!round.quiet) all_entered(round.tick);
  pending_begin_ += to_confirm_ + 1;
  pending_count_ -= to_confirm_ + 1;
}

void TickWindow::unheard(const Fingerprint& what) {
  if (unheard_ == 0) unheard_first_ = what.sequence;
  unheard_last_ = what.sequence;
  unheard_ = mix_in_order(unheard_, gist_of(what));
}

bool TickWindow::next_slots(const Plan& plan, SlotRing* ring, SlotPlaces* slots) const {
  uint64_t all = 0;
  for (size_t t = 0; t < static_cast<size_t>(plan.ticks); t++) {
    const uint64_t bytes = plan.slots[t] + (checksums_ ? table_bytes(plan.slots[t]) : 0);
    (*slots)[t] = ring->next(bytes, exchanges(plan));
    all += bytes;
  }
  return all > 0;
}

}  // namespace fsccl
