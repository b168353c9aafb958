// The window of an engine: which ticks may be used again, and where the slots of a round lie. It
// computes, and neither sends nor looks; so a test can run it without a transport.
//
// Operations of a communicator run one after the other: when one completes on a rank, every peer
// has entered it, so every peer has left the one before (plan.h, rule 1). Lazy plans end sooner:
// their rounds stay pending until this rank has seen every peer enter them, in order.
//
// Let `oldest_in_use_` be the tick where the last round began that this rank has seen every peer
// enter: the peers have left all rounds before it. A round that ends before tick e begins only when
// oldest_in_use_ >= e - kTickWindow. So the slot of a tick t may be written again, and its bytes in
// the ring used for others (slot_ring.h), at t + kTickWindow. And a peer that was seen in the round
// at oldest_in_use_ has, by the same rule, seen this rank in all rounds up to oldest_in_use_ -
// kTickWindow: so 2 * kTickWindow lines of signals are enough. With a kTickWindow of 8, a round of
// the ticks 8 and 9 ends before tick 10, so it begins only once every peer was seen in a round that
// began at tick 2 or later. Rounds of quiet plans (plan.h) in which some ranks tell nothing do not
// count: oldest_in_use_ goes from one round that all ranks tell of to the next.
#pragma once
#include <array>
#include <cstdint>

#include "base/invariant.h"
#include "engine/slot_ring.h"
#include "plan/fingerprint.h"
#include "plan/plan.h"

namespace fsccl {

class TickWindow {
 public:
  // A round of a lazy plan that not all peers were seen to enter.
  struct Round {
    uint32_t tick = 0;
    int next_peer = 0;  // peers before this one were seen to enter
    bool quiet = false;
    Fingerprint fingerprint;
  };

  // `checksums`: a slot has a table of checksums behind it (checksums.h).
  TickWindow(uint32_t first_tick, bool checksums, InvariantGuard& guard)
      : guard_(guard),
        checksums_(checksums),
        next_tick_(first_tick),
        oldest_in_use_(first_tick),
        heard_{first_tick},
        told_(first_tick - 1),
        placed_(first_tick - 1) {}

  // The tick at which the next operation begins.
  uint32_t next_tick() const { return next_tick_; }
  void set_next_tick(uint32_t tick) {
    FSCCL_INVARIANT(guard_, static_cast<int32_t>(tick - next_tick_) >= 0);
    next_tick_ = tick;
  }

  // Returns true if a round that ends before `end_tick` may begin: peers have left what it reuses.
  // Else rounds up to end_tick - kTickWindow are to be confirmed first.
  bool may_begin(uint32_t end_tick) const {
    return static_cast<int32_t>(oldest_in_use_ - (end_tick - kTickWindow)) >= 0;
  }

  // The next pending round that every peer is to be seen to enter, until oldest_in_use_ has reached
  // `tick`; null when there is none. Quiet rounds before it are confirmed with it.
  Round* next_to_confirm(uint32_t tick);
  // Every peer was seen to enter the round that next_to_confirm() gave.
  void confirm();
  // Every peer was seen to enter the round that began at `tick`, behind which nothing is pending.
  void all_entered(uint32_t tick) {
    FSCCL_INVARIANT(guard_, static_cast<int32_t>(tick - oldest_in_use_) >= 0);
    oldest_in_use_ = tick;
  }
  uint32_t pending() const { return pending_count_; }
  const Round& pending(uint32_t i) const { return rounds_[(pending_begin_ + i) % kTickWindow]; }

  // A lazy plan's round that began at `tick` is over here. False: more rounds are pending than the
  // window holds, which may_begin() rules out.
  bool add_pending(uint32_t tick, bool quiet, const Fingerprint& what) {
    if (!FSCCL_INVARIANT(guard_, pending_count_ < kTickWindow)) return false;
    rounds_[(pending_begin_ + pending_count_++) % kTickWindow] = {tick, 0, quiet, what};
    return true;
  }

  // Quiet rounds. A round is quiet where the plan says so and not too many before it were.
  bool quiet(const Plan& plan, uint32_t tick) const { return heard_.quiet(plan, tick); }
  // In the round of this tick every rank tells what it calls.
  void heard(uint32_t tick) {
    heard_.tick = tick;
    unheard_ = 0;
  }
  // In this round some ranks told nothing: the call is part of later calls' history.
  void unheard(const Fingerprint& what);
  uint64_t unheard_history() const { return unheard_; }
  // The number of the first call in the history of this one that was not compared by itself; 0
  // where there is none.
  uint64_t before_unheard(const Fingerprint& mine) const {
    return unheard_first_ < mine.sequence && mine.sequence <= unheard_last_ + 1 ? unheard_first_
                                                                                : 0;
  }
  // Returns true if this rank tells of the quiet round of this tick after all, for the first time
  // now.
  bool tell_once(uint32_t tick) {
    if (told_ == tick) return false;
    told_ = tick;
    return true;
  }

  // Slots. The ring's sizes come from the transport once the channel is open.
  void set_ring(const SlotRing& ring) { ring_ = ring; }
  // Places the slots of the round that begins at `tick`; returns whether it has any.
  bool place(const Plan& plan, uint32_t tick) {
    placed_ = tick;
    return next_slots(plan, &ring_, &slot_at_);
  }
  // The round of this tick has no slots.
  void place_none(uint32_t tick) { placed_ = tick; }
  bool placed(uint32_t tick) const { return placed_ == tick; }
  // Returns where the slot of a tick of the present round lies in a rank's ring.
  size_t slot_at(uint16_t tick) const { return slot_at_[tick]; }
  const std::array<size_t, kMaxTicks>& slots() const { return slot_at_; }
  // Returns where the next slot will lie, if it has so many bytes.
  size_t next_slot(uint64_t bytes) const { return SlotRing(ring_).next(bytes); }
  const SlotRing& ring() const { return ring_; }
  // Finds where the slots of a round lie that begins when `ring` has been used so far; returns
  // whether it has any.
  bool next_slots(const Plan& plan, SlotRing* ring, std::array<size_t, kMaxTicks>* slot_at) const;

 private:
  InvariantGuard& guard_;
  const bool checksums_;
  uint32_t next_tick_;
  uint32_t oldest_in_use_;
  LastHeard heard_;
  // A hash of the rounds since the last that was heard, and the calls of the first and the last of
  // the last such run.
  uint64_t unheard_ = 0;
  uint64_t unheard_first_ = 0, unheard_last_ = 0;
  uint32_t told_;
  SlotRing ring_;
  uint32_t placed_;
  std::array<size_t, kMaxTicks> slot_at_{};
  std::array<Round, kTickWindow> rounds_;
  uint32_t pending_begin_ = 0, pending_count_ = 0;
  uint32_t to_confirm_ = 0;  // the round that next_to_confirm() gave, counted from pending_begin_
};

}  // namespace fsccl
