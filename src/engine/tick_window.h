// The window of an engine: it says which ticks may be used again, and where the slots of a round
// lie. It only computes: it neither signals nor polls, so a test can run it without a transport.
//
// Operations of a communicator run one after the other. When an operation completes on a rank,
// every peer has entered it, so every peer has left the operation before (plan.h, rule 1). Plans
// that complete early are an exception: their rounds stay pending until this rank has seen every
// peer enter them, in order.
//
// `oldest_in_use_` is the first tick of the newest round that this rank has seen every peer enter.
// The peers have left all rounds before it, so it is the oldest round that a peer may still be in.
// A round that ends before tick e begins only when oldest_in_use_ >= e - kTickWindow. Therefore the
// slot of a tick t may be written again at t + kTickWindow, and its bytes in the ring may be used
// for other slots (slot_ring.h). By the same rule, a peer in the round at oldest_in_use_ has seen
// this rank in all rounds up to oldest_in_use_ - kTickWindow, so 2 * kTickWindow signal lines are
// enough. For example, with a kTickWindow of 8, a round of the ticks 8 and 9 ends before tick 10,
// so it begins only once every peer was seen in a round that began at tick 2 or later. Rounds of
// quiet plans (plan.h) in which the engine elides signals do not count: oldest_in_use_ advances
// from one round in which all ranks signal to the next.
#pragma once
#include <array>
#include <cstdint>

#include "base/invariant.h"
#include "engine/slot_ring.h"
#include "plan/fingerprint.h"
#include "plan/plan.h"

namespace fsccl {

// SlotPlaces are the places of the slots of a round.
using SlotPlaces = std::array<SlotPlace, kMaxTicks>;

class TickWindow {
 public:
  // A round of a plan that completed before this rank has seen all peers enter.
  struct Round {
    uint32_t tick = 0;
    int next_peer = 0;  // this rank has seen the peers before this one enter
    bool quiet = false;
    Fingerprint fingerprint;
  };

  // `checksums` says that each slot has a table of checksums behind it (checksums.h).
  TickWindow(uint32_t first_tick, bool checksums, InvariantGuard& guard)
      : guard_(guard),
        checksums_(checksums),
        next_tick_(first_tick),
        oldest_in_use_(first_tick),
        heard_{first_tick},
        told_(first_tick - 1),
        placed_(first_tick - 1) {}

  // Returns the tick at which the next operation begins.
  uint32_t next_tick() const { return next_tick_; }
  void set_next_tick(uint32_t tick) {
    FSCCL_INVARIANT(guard_, static_cast<int32_t>(tick - next_tick_) >= 0);
    next_tick_ = tick;
  }

  // Returns true if a round that ends before `end_tick` may begin, because the peers have left the
  // rounds whose slots and lines it reuses. Otherwise rounds up to end_tick - kTickWindow must be
  // confirmed first.
  bool may_begin(uint32_t end_tick) const {
    return static_cast<int32_t>(oldest_in_use_ - (end_tick - kTickWindow)) >= 0;
  }

  // Returns the next pending round that this rank must see every peer enter, until oldest_in_use_
  // has reached `tick`; null if there is none. Quiet rounds before it are confirmed with it.
  Round* next_to_confirm(uint32_t tick);
  // Confirms the round that next_to_confirm() has returned: every peer was seen to enter it.
  void confirm();
  // Notes that every peer was seen to enter the round that began at `tick`. No later round is
  // pending.
  void all_entered(uint32_t tick) {
    FSCCL_INVARIANT(guard_, static_cast<int32_t>(tick - oldest_in_use_) >= 0);
    oldest_in_use_ = tick;
  }
  uint32_t pending() const { return pending_count_; }
  const Round& pending(uint32_t i) const { return rounds_[(pending_begin_ + i) % kTickWindow]; }

  // Adds the round that began at `tick`, which is over on this rank, to the pending ones. Returns
  // false if more rounds are pending than the window holds, which may_begin() rules out.
  bool add_pending(uint32_t tick, bool quiet, const Fingerprint& what) {
    if (!FSCCL_INVARIANT(guard_, pending_count_ < kTickWindow)) return false;
    rounds_[(pending_begin_ + pending_count_++) % kTickWindow] = {tick, 0, quiet, what};
    return true;
  }

  // Quiet rounds. A round is quiet if the plan is quiet and not too many rounds before it were
  // quiet.
  bool quiet(const Plan& plan, uint32_t tick) const { return heard_.quiet(plan, tick); }
  // Notes that in the round of this tick every rank signals, and so tells what it calls.
  void heard(uint32_t tick) {
    heard_.tick = tick;
    unheard_ = 0;
  }
  // Notes that in this round some ranks did not signal. The call becomes part of the history of
  // later calls.
  void unheard(const Fingerprint& what);
  uint64_t unheard_history() const { return unheard_; }
  // Returns the sequence number of the first call in the history of this one that was not compared
  // by itself; 0 if there is none.
  uint64_t before_unheard(const Fingerprint& mine) const {
    return unheard_first_ < mine.sequence && mine.sequence <= unheard_last_ + 1 ? unheard_first_
                                                                                : 0;
  }
  // Returns true if it is called for this tick for the first time. This rank then signals in the
  // quiet round of this tick after all.
  bool tell_once(uint32_t tick) {
    if (told_ == tick) return false;
    told_ = tick;
    return true;
  }

  // Slots. The ring's sizes come from the transport once the channel is open. `exchanges`: there
  // are two ranks, and each can write to both rings.
  void set_ring(const SlotRing& ring, bool exchanges) {
    ring_ = ring;
    exchanges_ = exchanges;
  }
  // Places the slots of the round that begins at `tick`. Returns true if it has any.
  bool place(const Plan& plan, uint32_t tick) {
    placed_ = tick;
    // Most small calls have one tick, whose slot takes fewer instructions than the loop.
    if (plan.ticks != 1 || checksums_) return next_slots(plan, &ring_, &slots_);
    slots_[0] = ring_.next(plan.slots[0], exchanges(plan));
    return plan.slots[0] > 0;
  }
  // Notes that the round of this tick has no slots.
  void place_none(uint32_t tick) { placed_ = tick; }
  bool placed(uint32_t tick) const { return placed_ == tick; }
  // Returns where the slot of a tick of the present round lies in a rank's ring.
  const SlotPlace& slot(uint16_t tick) const { return slots_[tick]; }
  const SlotPlaces& slots() const { return slots_; }
  // Returns where the first slot of the next round will lie if that is a round of `plan`.
  SlotPlace next_slot(const Plan& plan) const {
    return ring_.place_of_next(plan.slots[0], exchanges(plan));
  }
  const SlotRing& ring() const { return ring_; }
  // Finds where the slots of a round lie, if the ring is used as far as `ring` says. Returns true
  // if the round has slots.
  bool next_slots(const Plan& plan, SlotRing* ring, SlotPlaces* slots) const;

 private:
  bool exchanges(const Plan& plan) const { return exchanges_ && plan.two_way; }

  InvariantGuard& guard_;
  const bool checksums_;
  uint32_t next_tick_;
  uint32_t oldest_in_use_;
  LastHeard heard_;
  // A hash of the rounds since the last one in which all ranks signalled, and the sequence numbers
  // of the first and the last call of the newest run of such rounds.
  uint64_t unheard_ = 0;
  uint64_t unheard_first_ = 0, unheard_last_ = 0;
  uint32_t told_;
  SlotRing ring_;
  bool exchanges_ = false;
  uint32_t placed_;
  SlotPlaces slots_{};
  std::array<Round, kTickWindow> rounds_;
  uint32_t pending_begin_ = 0, pending_count_ = 0;
  uint32_t to_confirm_ = 0;  // the round that next_to_confirm() returned, from pending_begin_ on
};

}  // namespace fsccl
