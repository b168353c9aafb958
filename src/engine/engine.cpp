#include "engine/engine.h"

#include <cstring>

#include "base/fetch.h"
#include "base/hash.h"
#include "engine/executor.h"
#include "engine/progress.h"
#include "record/message_names.h"

namespace fsccl {

// engine.h
static_assert(FSCCL_TRANSPORT_TICKS >= 2 * kWindow && FSCCL_TRANSPORT_SLOTS >= kWindow + 2);

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      transport_(*options_.transport),
      channel_(options_.channel),
      rank_(options_.rank),
      ranks_(options_.ranks),
      can_read_(transport_.can_read(channel_) != 0),
      sums_(options_.checksum && !mirrored()),
      at_once_(!options_.checksum),
      next_tick_(options_.first_tick),
      left_(options_.first_tick),
      heard_{options_.first_tick},
      told_(options_.first_tick - 1),
      placed_(options_.first_tick - 1),
      remote_(2 * static_cast<size_t>(options_.ranks)),
      sources_(static_cast<size_t>(options_.ranks)),
      departed_(static_cast<size_t>(options_.ranks)) {
  for (int rank = 0; rank < ranks_; rank++) {
    slots_.push_back(
        static_cast<std::byte*>(transport_.slots(channel_, rank, &ring_bytes_, &slot_bytes_)));
    one_process_ &= can_read_ && options_.same_process[static_cast<size_t>(rank)];
  }
  slot_ring_ = SlotRing(ring_bytes_, slot_bytes_, mirrored());
  if (sums_) slot_bytes_ = slot_bytes_beside_sums(slot_bytes_);
  slot_stores_ = SlotStores(options_.slot_streaming_from, ring_bytes_, options_.copy_rate,
                            options_.side_by_side);
  no_memory_.code = FSCCL_ERR_OUT_OF_MEMORY;
  no_memory_.rank = no_memory_.peer = known_as(rank_);
  no_memory_.text = fmt::format(
      "rank {} of '{}' got no memory from the system for the library's own data, in the middle of "
      "an operation; free some, or "
      "raise the limit of the container",
      known_as(rank_), options_.name);
  Progress::instance().expect();
}

Engine::~Engine() {
  Progress::instance().forget(this);
  notifications_.notify(completed(), failed() ? failure_code() : FSCCL_ERR_ABORTED);
  transport_.close(channel_);
}

Status Engine::acquire(Operation** operation, const OperationSettings& settings,
                       const Fingerprint& fingerprint) {
  const uint64_t sequence = tail_.load(std::memory_order_relaxed) + 1;
  if (failed()) [[unlikely]]
    return failure();
  if (sequence - completed() > kRing) [[unlikely]] {
    fsccl_status_t state;
    FSCCL_TRY(wait(sequence - kRing, -1, &state));
  }
  *operation = &place(sequence, settings, fingerprint);
  return success();
}

Operation& Engine::place(uint64_t sequence, const OperationSettings& settings,
                         const Fingerprint& fingerprint) {
  Operation& op = ring_[sequence % kRing];
  static_cast<OperationSettings&>(op) = settings;
  op.fingerprint = fingerprint;
  op.fingerprint.sequence = sequence;
  op.bindings = op.inline_bindings.data();
  return op;
}

Status Engine::submit(Operation& op, bool wait_for_it, fsccl_status_t* state) {
  const uint64_t sequence = op.fingerprint.sequence;
  sites_.mark(op.fingerprint);
  record(recording::Event::submitted, op.fingerprint, op.fingerprint.root);
  if (wait_for_it) {
    tail_.store(sequence, std::memory_order_release);
    return wait(sequence, -1, state);
  }
  tail_.store(sequence, std::memory_order_seq_cst);  // before `attended` is looked at
  FSCCL_TRY(test(sequence, state));
  if (*state == FSCCL_IN_PROGRESS && !attended.load(std::memory_order_seq_cst))
    Progress::instance().attend(this);
  return success();
}

Engine::Outcome Engine::drive() noexcept {
  // what is the driver's may be another thread's (engine.h)
  if (!under_way()) return Outcome::done;
  drove_ = true;
  Outcome outcome = Outcome::failed;
  try {
    outcome = drive_on();
  } catch (const std::bad_alloc&) {
    fail_without_memory();
  }
  fence_slots();  // who goes on may be another thread
  return outcome;
}

Engine::Outcome Engine::drive_on() {
  while (under_way()) {
    if (failed()) [[unlikely]]
      return Outcome::failed;
    Operation& op = at_head();
    if (!op.begun) {
      if (op.gate && !gate_open(op)) [[unlikely]]
        return failed() ? Outcome::failed : Outcome::blocked;
      op.begun = true;
      op.tick = next_tick_;
      op.fingerprint.history ^= unheard_;
      op.foreseen = op.foresees && foresight_.unreachable();
      if (op.foreseen) std::swap(op.plan, op.otherwise);
    }
    const Outcome outcome = Executor(*this, op).run();
    if (outcome != Outcome::done) return outcome;
    next_tick_ = op.tick + static_cast<uint32_t>(op.plan->ticks);
    if (op.foresees) foresight_.found(op.unreachable);
    if (op.complete && op.complete(op) == Completion::again) {
      op.tick = next_tick_;
      op.step = op.round = 0;
      op.peer = 0;
      continue;
    }
    if (op.state) [[unlikely]]
      op.state.reset();
    if (notifications_.due(complete(op.fingerprint))) [[unlikely]]
      return Outcome::done;
  }
  return Outcome::done;
}

uint64_t Engine::complete(const Fingerprint& what) {
  record(recording::Event::completed, what, -1);
  return count_completed(what.op);
}

uint64_t Engine::count_completed(OpCode op) {
  const uint64_t head = completed() + 1;
  tally_.completed(op);
  done_.reach(head);
  return head;
}

// The first of the calls in the history of this one that were not compared by themselves; 0: there
// are none.
uint64_t Engine::before_unheard(const Fingerprint& mine) const {
  return unheard_first_ < mine.sequence && mine.sequence <= unheard_last_ + 1 ? unheard_first_ : 0;
}

void Engine::mismatch(const Fingerprint& mine, int peer, const Fingerprint& theirs) {
  Error error;
  error.code = FSCCL_ERR_MISMATCH;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = name_for(rank_, mine);
  error.sequence = mine.sequence;
  error.text = fmt::format(
      "ranks disagree: rank {} calls {}, rank {} calls {}; they differ in {}. All ranks must issue "
      "the same operations in the same "
      "order",
      error.rank, describe_for(rank_, mine), error.peer, describe_for(peer, theirs),
      difference(mine, theirs, {sites_.of(mine.sequence), before_unheard(mine)}));
  fail_all(error);
}

void Engine::damaged(const Fingerprint& mine, int peer, const std::string& what,
                     const std::string& sums) {
  Error error;
  error.code = FSCCL_ERR_PROTOCOL;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = name_for(rank_, mine);
  error.sequence = mine.sequence;
  error.text = fmt::format(
      "rank {} got {} of {} from rank {} over {} that changed on the way: {}. Look at the memory "
      "and the processors of these two",
      error.rank, what, describe_for(rank_, mine), error.peer, transport_.name, sums);
  fail_all(error);
}

Fingerprint Engine::claimed(const fsccl_transport_line_t& line) const {
  if (options_.checksum) return claim_of(line);
  Fingerprint claim;
  std::memcpy(&claim, line.fingerprint, sizeof claim);
  return claim;
}

bool Engine::check_claim(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
  const Fingerprint theirs = claimed(line);
  if (equal(mine, &theirs)) return true;
  if (options_.checksum && differ_in_sum(mine, theirs)) {
    const auto sum = static_cast<uint32_t>(sum_over_sequence(line) >> 32);
    damaged(mine, peer, "a signal's payload",
            fmt::format("its CRC32C is {:#010x}, {:#010x} was meant", sum,
                        sum ^ static_cast<uint32_t>((mine.sequence ^ theirs.sequence) >> 32)));
    return false;
  }
  // Rounds before this one may not have been looked at yet, and may have had other numbers of
  // ticks, or been quiet: the first that differs from what anybody told is told.
  for (uint32_t i = 0; i < pending_count_; i++) {
    const Pending& round = pending_[(pending_begin_ + i) % kWindow];
    if (round.fingerprint.sequence == theirs.sequence &&
        // of a plan in steps: the peer has told no other tick of it here
        !equal(round.fingerprint, &theirs)) {
      mismatch(round.fingerprint, peer, theirs);
      return false;
    }
    for (int k = 0; k < ranks_; k++) {
      const int q = (peer + k) % ranks_;
      const fsccl_transport_line_t* before =
          q == rank_ ? nullptr : transport_.poll(channel_, q, round.tick);
      if (!before) continue;
      if (const Fingerprint then = claimed(*before); !equal(round.fingerprint, &then)) {
        mismatch(round.fingerprint, q, then);
        return false;
      }
    }
  }
  mismatch(mine, peer, theirs);
  return false;
}

bool Engine::settle(uint32_t tick) {
  while (pending_count_ && static_cast<int32_t>(left_ - tick) < 0) {
    const auto round_at = [&](uint32_t i) -> Pending& {
      return pending_[(pending_begin_ + i) % kWindow];
    };
    // in which all say that they have entered; where there is none, they were seen to in a later
    // one
    uint32_t next = 0;
    while (next + 1 < pending_count_ && round_at(next).quiet) next++;
    Pending& round = round_at(next);
    for (; !round.quiet && round.peer < ranks_; round.peer++) {
      if (round.peer == rank_) continue;
      const fsccl_transport_line_t* line = transport_.poll(channel_, round.peer, round.tick);
      if (!line) {
        blocked_ = {nullptr, 0, round.peer, round.tick};
        return false;
      }
      if (!check_enter(round.fingerprint, round.peer, *line)) return false;
    }
    if (!round.quiet) left_ = round.tick;
    pending_begin_ += next + 1;
    pending_count_ -= next + 1;
  }
  return true;
}

// All peers have entered the round of this tick, so they have entered every round before, too.
bool Engine::all_entered(uint32_t tick) {
  if (pending_count_ && !settle(tick)) return false;
  left_ = tick;
  return true;
}

bool Engine::reserve_slots() {
  char text[256] = "";
  const fsccl_status_t code = transport_.reserve(channel_, text, sizeof text);
  slots_reserved_ = code == FSCCL_OK;
  if (slots_reserved_) return true;
  Error error;
  error.code = code;
  error.rank = error.peer = known_as(rank_);
  error.text = fmt::format("rank {}: {}", error.rank, text);
  fail_all(error);
  return false;
}

bool Engine::place_slots(const Plan& plan, uint32_t tick) {
  placed_ = tick;
  return !next_slots(plan, &slot_ring_, &slot_at_) || slots_reserved_ || reserve_slots();
}

bool Engine::next_slots(const Plan& plan, SlotRing* ring,
                        std::array<size_t, kMaxTicks>* slot_at) const {
  uint64_t all = 0;
  for (size_t t = 0; t < static_cast<size_t>(plan.ticks); t++) {
    const uint64_t bytes = plan.slots[t] + (sums_ ? table_bytes(plan.slots[t]) : 0);
    (*slot_at)[t] = ring->next(bytes);
    all += bytes;
  }
  return all > 0;
}

void Engine::fetch_next(const Plan& plan, uint32_t tick) const {
  if (!transport_.prepare) return;
  if (const uint64_t bytes = plan.slots[0]) {
    if (bytes > kFetchedSlotBytes || slot_stores_.past_caches(bytes)) return;
    fetch_to_write(slots_[static_cast<size_t>(rank_)] + SlotRing(slot_ring_).next(bytes), bytes);
  }
  transport_.prepare(channel_, tick);
}

bool Engine::end_round(const Plan& plan, uint32_t tick, const Fingerprint& what) {
  const bool quiet = heard_.quiet(plan, tick);
  if (plan.lazy)
    pending_[(pending_begin_ + pending_count_++) % kWindow] = {tick, 0, quiet, what};
  else if (!all_entered(tick))
    return false;
  if (quiet) {
    if (unheard_ == 0) unheard_first_ = what.sequence;
    unheard_last_ = what.sequence;
    unheard_ = mix_in_order(unheard_, gist_of(what));
  } else {
    heard(tick);
  }
  fetch_next(plan, tick + static_cast<uint32_t>(plan.ticks));
  return true;
}

bool Engine::learn(int rank, uint32_t index, const Location& location, const Plan& asks,
                   const OperationSettings& how, bool* unreachable) {
  const Buffer& buffer = asks.buffers[how.published[index]];
  const auto at = static_cast<size_t>(rank);
  const uint64_t bytes = buffer.peer_bytes.empty() ? buffer.bytes : buffer.peer_bytes[at];
  Remote& remote = remote_[index * static_cast<size_t>(ranks_) + at];
  remote = {};
  if (location.arena >= kFirstArena) {
    remote.mapped = options_.arenas->resolve(location, bytes);
    return remote.mapped;
  }
  if (location.arena != kPrivate) return location.arena == kNowhere && bytes == 0;
  remote.address = location.address;
  if (can_read_ && options_.same_process[at])
    remote.mapped = reinterpret_cast<std::byte*>(location.address);
  *unreachable |= out_of_reach(location, buffer, how);
  return true;
}

bool Engine::gate_open(Operation& op) {
  const auto open = [&] { return op.gate->reached() >= op.gate_position; };
  if (open()) return true;
  fsccl_status_t state;
  const Status status = op.gate_engine->test(op.gate_sequence, &state, Calls::elsewhere);
  if (open()) return true;
  if (!status.ok()) fail_all(status.error());
  blocked_ = {op.gate, op.gate_position, rank_, 0};
  return false;
}

void Engine::rest() {
  if (std::exchange(drove_, false) && transport_.rest) transport_.rest(channel_);
}

void Engine::stop_driving(Calls calls) {
  rest();
  driving_.store(false, std::memory_order_release);
  if (missed_.load(std::memory_order_relaxed)) [[unlikely]] {
    missed_.store(false, std::memory_order_relaxed);
    if (unattended()) Progress::instance().attend(this);  // what it would have slept on
  }
  if (!notifications_.due(completed())) [[likely]]
    return;
  if (calls == Calls::here) return notify_due();
  Progress::instance().attend(this);
}

void Engine::notify_due() {
  if (!notifications_.due(completed())) return;
  // before `completed` is read: what completed first was a success
  const bool over = failed();
  if (over && !look_back()) return;  // then who drives does it, or the service thread
  notifications_.notify(completed(), over ? failure_code() : FSCCL_OK);
}

void Engine::notify(uint64_t sequence, Notification notification) {
  const auto over = [&] { return completed() >= sequence || (failed() && look_back()); };
  if (over()) {
    const fsccl_status_t status = completed() >= sequence ? FSCCL_OK : failure_code();
    return Notifications::call(std::move(notification), status);
  }
  notifications_.add(sequence, std::move(notification));
  // A driver that completes the operation now may not see ours: then we do, here, or the service
  // thread.
  const bool seen = over();
  if (failed()) notifications_.all_due();
  notify_due();
  if (!seen) Progress::instance().attend(this);
}

Status Engine::test(uint64_t sequence, fsccl_status_t* state, Calls calls) {
  while (completed() < sequence && !failed() && try_drive()) {
    const bool stuck = drive() != Outcome::done;
    stop_driving(calls);
    // one that was never submitted does not complete
    if (stuck || completed() == submitted()) break;
  }
  const bool over = failed() && look_back();
  if (completed() >= sequence) {
    *state = FSCCL_OK;
    return success();
  }
  if (over) return failure();
  *state = FSCCL_IN_PROGRESS;
  return success();
}

bool Engine::has_come(int peer) {
  if (under_way() || !try_drive()) return false;
  const bool come = !under_way() && transport_.poll(channel_, peer, next_tick_) != nullptr;
  stop_driving(Calls::elsewhere);
  return come;
}

// What blocks is asked only for an operation that drive() has come to: one that is submitted behind
// it may still be written.
Engine::Attempt Engine::try_progress(fsccl_transport_word_t* word) {
  while (true) {
    notify_due();
    if (!try_drive()) {
      missed_.store(true, std::memory_order_relaxed);
      return Attempt::busy;
    }
    const Outcome outcome = drive();
    const bool more = outcome == Outcome::done && unattended(),
               blocked = outcome == Outcome::blocked;
    if (!more) rest();
    if (blocked) {
      record_blocked();
      check_blocked(at_head());
      fill_word(blocked_, word);
      if (met(blocked_)) word->value = ~word->value;  // do not sleep on it
    }
    driving_.store(false, std::memory_order_release);
    if (blocked && !failed()) return Attempt::blocked;
    // else it was submitted meanwhile, by a thread that saw this one drive
    if (!unattended()) return Attempt::idle;
  }
}

}  // namespace fsccl
