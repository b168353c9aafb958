// The beginnings and ends of rounds: which peers have entered, where slots lie, what a blocked
// operation waits for, and how an operation goes on with another plan or ends after a failure.
#include <algorithm>
#include <bit>

#include "base/clock.h"
#include "base/fetch.h"
#include "engine/runner.h"

namespace fsccl {

bool Runner::signals_again(const Plan& plan, uint32_t step) {
  const auto for_all = [](const Step& any) {
    return any.kind == StepKind::signal && any.peer == kAllPeers && !any.optional;
  };
  if (!for_all(plan.steps[step])) return false;
  do step++;
  while (step < plan.steps.size() && plan.steps[step].kind == StepKind::put);
  return step < plan.steps.size() && for_all(plan.steps[step]);
}

bool Runner::confirm_entered(uint32_t tick) {
  while (TickWindow::Round* const round = ticks_.next_to_confirm(tick)) {
    for (; !round->quiet && round->next_peer < ranks_; round->next_peer++) {
      if (round->next_peer == rank_) continue;
      const fsccl_transport_line_t* line = channel_.poll(round->next_peer, round->tick);
      if (!line) {
        blocked_ = {nullptr, 0, round->next_peer, round->tick};
        return false;
      }
      if (!check_enter(round->fingerprint, round->next_peer, *line)) return false;
    }
    ticks_.confirm();
  }
  return true;
}

// Notes that all peers have entered the round of this tick, and with it every round before.
bool Runner::all_entered(uint32_t tick) {
  if (ticks_.pending() && !confirm_entered(tick)) return false;
  ticks_.all_entered(tick);
  return true;
}

bool Runner::end_round(const Cursor& cursor) {
  const Plan& plan = *cursor.plan;
  const bool quiet = ticks_.quiet(plan, cursor.tick);
  if (!(plan.completes_early ? ticks_.add_pending(cursor.tick, quiet, cursor.fingerprint)
                             : all_entered(cursor.tick)))
    return false;
  if (quiet)
    ticks_.unheard(cursor.fingerprint);
  else
    ticks_.heard(cursor.tick);
  fetch_next(plan, cursor.tick + static_cast<uint32_t>(plan.ticks));
  return true;
}

bool Runner::place_slots(const Plan& plan, uint32_t tick) {
  return !ticks_.place(plan, tick) || slots_reserved() || reserve_slots();
}

bool Runner::reserve_slots() {
  const Status reserved = channel_.reserve();
  slots_reserved_.store(reserved.ok(), std::memory_order_relaxed);
  if (reserved.ok()) return true;
  Error error;
  error.code = reserved.code();
  error.rank = error.peer = known_as(rank_);
  error.text = fmt::format("rank {}: {}", error.rank, reserved.text());
  failure_.fail_all(error);
  return false;
}

// Fetches the memory that this rank will write first in the next round, at `tick`, if that round is
// like this one: its slot, and then its signal.
void Runner::fetch_next(const Plan& plan, uint32_t tick) const {
  if (!traits_.prepares) return;
  if (const uint64_t bytes = plan.slots[0]) {
    if (bytes > kFetchedSlotBytes || slot_stores_.past_caches(bytes)) return;
    fetch_to_write(at(ticks_.next_slot(plan), rank_), bytes);
  }
  channel_.prepare(tick);
}

bool Runner::met(const Blocked& blocked) const {
  if (blocked.release) return blocked.release->reached() >= blocked.position;
  fetch_to_read(blocked.data, blocked.data_bytes);
  if (channel_.poll(blocked.peer, blocked.tick)) return true;
  return blocked.until_ns && now_ns() >= blocked.until_ns;
}

void Runner::fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const {
  if (blocked.release)
    blocked.release->fill_word(word);
  else
    channel_.word(blocked.peer, blocked.tick, word);
}

// Checks for peers in quiet rounds. Checks become rarer while the wait lasts, because each check
// polls a line of every peer, and a thousand ranks may be waiting.
void Runner::look_at_quiet(Operation& op) {
  waits_ = std::exchange(waited_for_, op.fingerprint.sequence) == op.fingerprint.sequence
               ? waits_ + 1
               : 0;
  if (!std::has_single_bit(waits_)) return;
  const auto look = [&](uint32_t tick, const Fingerprint& mine) {
    for (int peer = 0; peer < ranks_ && !failure_.failed(); peer++)
      if (const auto* line = peer == rank_ ? nullptr : channel_.poll(peer, tick))
        (void)check_enter(mine, peer, *line);
  };
  for (uint32_t i = 0; i < ticks_.pending(); i++) {
    const TickWindow::Round& round = ticks_.pending(i);
    if (round.quiet) look(round.tick, round.fingerprint);
  }
  if (!op.begun || op.step == 0) return;
  const Step& first = op.plan->steps.front();
  if (first.optional && ticks_.quiet(*op.plan, op.tick) && ticks_.tell_once(op.tick))
    signal(op, first);
  look(op.tick, op.fingerprint);
}

// Continues with the plan through slots, because some rank cannot touch some buffer. All ranks know
// this and do the same.
bool Runner::switch_to_fallback(Operation& op) {
  if (!all_entered(op.tick)) return false;
  ticks_.heard(op.tick++);
  op.take_fallback();
  op.asks = nullptr;
  op.step = op.round = 0;
  return run_round(op);
}

bool Runner::finish_from_signals(Operation& op) {
  if (!op.begun || op.complete || op.plan->ticks == 0 || op.round + 1 < op.plan->rounds)
    return false;
  const auto in_signals = [](const Step& step) {
    return step.kind == StepKind::wait || step.kind == StepKind::reduce_local;
  };
  if (!std::all_of(op.plan->steps.begin() + op.step, op.plan->steps.end(), in_signals))
    return false;
  for (; op.step < op.plan->steps.size(); op.step++)
    if (!perform(op, op.plan->steps[op.step])) return false;
  return end_round(op);
}

}  // namespace fsccl
