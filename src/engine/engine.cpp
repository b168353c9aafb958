#include "engine/engine.h"

#include <sched.h>

#include <cstring>

#include "base/futex.h"
#include "engine/executor.h"
#include "engine/progress.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace fsccl {
namespace {

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

static_assert(FSCCL_TRANSPORT_TICKS >= 2 * kWindow && FSCCL_TRANSPORT_SLOTS >= kWindow + 2);  // engine.h

// How a wait spends its time before it sleeps. Bare polls see a peer that is nearly there soonest; yields let a peer run that
// shares our core.
constexpr int kBarePolls = 400;
constexpr int kYields = 40;
constexpr int kIdleYields = 4;
constexpr int64_t kIdleYieldNs = 1'500;
constexpr int64_t kSleepSliceNs = 10'000'000;  // how soon a sleeper notices what has no wake-up of its own: deadlines, losses

}  // namespace

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      transport_(*options_.transport),
      channel_(options_.channel),
      rank_(options_.rank),
      ranks_(options_.ranks),
      can_read_(transport_.can_read(channel_) != 0),
      next_tick_(options_.first_tick),
      left_(options_.first_tick),
      placed_(options_.first_tick - 1),
      remote_(2 * static_cast<size_t>(options_.ranks)),
      sources_(static_cast<size_t>(options_.ranks)),
      lost_(static_cast<size_t>(options_.ranks)) {
  for (int rank = 0; rank < ranks_; rank++) {
    slots_.push_back(static_cast<std::byte*>(transport_.slots(channel_, rank, &ring_bytes_, &slot_bytes_)));
    one_process_ &= can_read_ && options_.same_process[static_cast<size_t>(rank)];
  }
  slot_stores_ = SlotStores(options_.slot_streaming_from, ring_bytes_, options_.copy_rate);
  Progress::instance().expect();
}

Engine::~Engine() {
  Progress::instance().forget(this);
  notifications_.notify(completed(), failed() ? failure().code() : FSCCL_ERR_ABORTED);
  transport_.close(channel_);
}

Status Engine::acquire(Operation** operation, const OperationSettings& settings, const Fingerprint& fingerprint) {
  const uint64_t sequence = tail_.load(std::memory_order_relaxed) + 1;
  if (failed()) [[unlikely]]
    return failure();
  if (sequence - completed() > kRing) [[unlikely]] {
    fsccl_status_t state;
    FSCCL_TRY(wait(sequence - kRing, -1, &state));
  }
  Operation& op = ring_[sequence % kRing];
  static_cast<OperationSettings&>(op) = settings;
  op.fingerprint = fingerprint;
  op.fingerprint.sequence = sequence;
  op.bindings = op.inline_bindings.data();
  *operation = &op;
  return success();
}

Status Engine::submit(Operation& op, bool wait_for_it, fsccl_status_t* state) {
  const uint64_t sequence = op.fingerprint.sequence;
  if (wait_for_it) {
    tail_.store(sequence, std::memory_order_release);
    return wait(sequence, -1, state);
  }
  tail_.store(sequence, std::memory_order_seq_cst);  // before `attended` is looked at
  FSCCL_TRY(test(sequence, state));
  if (*state == FSCCL_IN_PROGRESS && !attended.load(std::memory_order_seq_cst)) Progress::instance().attend(this);
  return success();
}

Engine::Outcome Engine::drive() {
  uint64_t head = head_.load(std::memory_order_relaxed);
  while (head < tail_.load(std::memory_order_acquire)) {
    if (failed()) [[unlikely]]
      return Outcome::failed;
    Operation& op = ring_[(head + 1) % kRing];
    if (!op.begun) {
      if (op.gate && !gate_open(op)) [[unlikely]]
        return failed() ? Outcome::failed : Outcome::blocked;
      op.begun = true;
      op.tick = next_tick_;
    }
    const Outcome outcome = Executor(*this, op).run();
    if (outcome != Outcome::done) return outcome;
    next_tick_ = op.tick + static_cast<uint32_t>(op.plan->ticks);
    if (op.complete && op.complete(op) == Completion::again) {
      op.tick = next_tick_;
      op.step = op.round = 0;
      op.peer = 0;
      continue;
    }
    if (op.state) [[unlikely]]
      op.state.reset();
    counters_.operations++;
    head_.store(++head, std::memory_order_release);
    if (notifications_.due(head)) [[unlikely]]
      return Outcome::done;
  }
  return Outcome::done;
}

void Engine::mismatch(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
  Fingerprint theirs;
  std::memcpy(&theirs, line.fingerprint, sizeof theirs);
  Error error;
  error.code = FSCCL_ERR_MISMATCH;
  error.rank = known_as(rank_);
  error.peer = known_as(peer);
  error.operation = op_name(mine.op);
  error.sequence = mine.sequence;
  error.text = fmt::format(
      "ranks disagree: rank {} calls {}, rank {} calls {}; they differ in {}. All ranks must issue the same operations in the same "
      "order",
      error.rank, describe(mine), error.peer, describe(theirs), difference(mine, theirs));
  fail_all(error);
}

bool Engine::check_enter(const Fingerprint& mine, int peer, const fsccl_transport_line_t& line) {
  if (equal(mine, line.fingerprint)) [[likely]]
    return true;
  mismatch(mine, peer, line);
  return false;
}

bool Engine::settle(uint32_t tick) {
  while (pending_count_ && static_cast<int32_t>(left_ - tick) < 0) {
    Pending& round = pending_[pending_begin_ % kWindow];
    for (; round.peer < ranks_; round.peer++) {
      if (round.peer == rank_) continue;
      const fsccl_transport_line_t* line = transport_.poll(channel_, round.peer, round.tick);
      if (!line) {
        blocked_ = {nullptr, 0, round.peer, round.tick};
        return false;
      }
      if (!check_enter(round.fingerprint, round.peer, *line)) return false;
    }
    left_ = round.tick;
    pending_begin_++;
    pending_count_--;
  }
  return true;
}

// All peers have entered the round of this tick, so they have entered every round before, too.
bool Engine::all_entered(uint32_t tick) {
  if (pending_count_ && !settle(tick)) return false;
  left_ = tick;
  return true;
}

void Engine::place_slots(const Plan& plan, uint32_t tick) {
  placed_ = tick;
  for (size_t t = 0; t < static_cast<size_t>(plan.ticks); t++) {
    if (plan.slots[t] == 0) continue;
    if (ring_at_ + plan.slots[t] > ring_bytes_) ring_at_ = 0;
    slot_at_[t] = ring_at_;
    ring_at_ += plan.slots[t];
  }
}

bool Engine::round_done(const Operation& op) {
  if (!op.plan->lazy) return all_entered(op.tick);
  pending_[(pending_begin_ + pending_count_++) % kWindow] = {op.tick, 0, op.fingerprint};
  return true;
}

bool Engine::gate_open(Operation& op) {
  const auto open = [&] {
    return std::atomic_ref(const_cast<uint64_t&>(op.gate->position)).load(std::memory_order_acquire) >= op.gate_position;
  };
  if (open()) return true;
  fsccl_status_t state;
  const Status status = op.gate_engine->test(op.gate_sequence, &state, Calls::elsewhere);
  if (open()) return true;
  if (!status.ok()) fail_all(status.error());
  blocked_ = {op.gate, op.gate_position, rank_, 0};
  return false;
}

void Engine::stop_driving(Calls calls) {
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
  const bool over = failed();  // before `completed` is read: what completed first was a success
  notifications_.notify(completed(), over ? failure().code() : FSCCL_OK);
}

void Engine::notify(uint64_t sequence, Notification notification) {
  const auto over = [&] { return completed() >= sequence || failed(); };
  if (over()) {
    const fsccl_status_t status = completed() >= sequence ? FSCCL_OK : failure().code();
    return Notifications::call(std::move(notification), status);
  }
  notifications_.add(sequence, std::move(notification));
  // A driver that completes the operation now may not see ours: then we do, here, or the service thread.
  const bool seen = over();
  if (failed()) notifications_.all_due();
  notify_due();
  if (!seen) Progress::instance().attend(this);
}

Status Engine::test(uint64_t sequence, fsccl_status_t* state, Calls calls) {
  while (completed() < sequence && !failed() && try_drive()) {
    const bool stuck = drive() != Outcome::done;
    stop_driving(calls);
    if (stuck) break;
  }
  if (completed() >= sequence) {
    *state = FSCCL_OK;
    return success();
  }
  if (failed()) return failure();
  *state = FSCCL_IN_PROGRESS;
  return success();
}

Status Engine::wait(uint64_t sequence, int64_t timeout_ms, fsccl_status_t* state) {
  const int64_t until_ns = timeout_ms < 0 ? INT64_MAX : Deadline::in_ms(timeout_ms).at_ns();
  const bool done = wait_until(sequence, until_ns);
  if (completed() < sequence && failed()) [[unlikely]]
    return failure();
  *state = done ? FSCCL_OK : FSCCL_IN_PROGRESS;
  return success();
}

bool Engine::wait_until(uint64_t sequence, int64_t until_ns, Calls calls) {
  for (unsigned tries = 0; completed() < sequence; tries++) {
    if (failed()) [[unlikely]]
      return true;
    if (try_drive()) {
      const bool over = wait_driving(sequence, until_ns);
      stop_driving(calls);
      if (over || now_ns() >= until_ns) return over;
      continue;  // it stopped for a notification
    }
    // Another thread drives; it needs no help, only patience.
    missed_.store(true, std::memory_order_relaxed);
    if (tries < 64)
      relax();
    else if (tries < 128)
      sched_yield();
    else {
      const timespec pause{0, 50'000};
      nanosleep(&pause, nullptr);
      if (now_ns() >= until_ns) return false;
    }
  }
  return true;
}

bool Engine::met(const Blocked& blocked) const {
  if (blocked.release)
    return std::atomic_ref(const_cast<uint64_t&>(blocked.release->position)).load(std::memory_order_acquire) >= blocked.position;
  for (uint32_t at = 0; at < blocked.data_bytes; at += 64) __builtin_prefetch(blocked.data + at);
  return transport_.poll(channel_, blocked.peer, blocked.tick) != nullptr;
}

bool Engine::wait_driving(uint64_t sequence, int64_t until_ns) {
  while (true) {
    const Outcome outcome = drive();
    if (completed() >= sequence || failed()) return true;
    if (outcome == Outcome::done) [[unlikely]]
      return false;
    if (Operation& op = at_head(); op.gate && !op.begun) [[unlikely]] {
      (void)op.gate_engine->wait_until(op.gate_sequence, std::min(until_ns, now_ns() + kSleepSliceNs), Calls::elsewhere);
      if (met(blocked_)) continue;
      check_blocked(op);
      if (failed()) return true;
      if (now_ns() >= until_ns) return false;
      continue;
    }
    // Blocked: poll bare, then with pauses while there is a core for everybody, then yield, then sleep.
    bool on = false;
    for (int i = 0; i < kBarePolls && !on; i++) on = met(blocked_);
    if (on) [[likely]]
      continue;
    fsccl_transport_word_t word;
    fill_word(blocked_, &word);
    const bool same_core = word.processor >= 0 && word.processor == sched_getcpu();  // the peer cannot run while we spin
    if (!options_.oversubscribed && !same_core) {
      const int64_t spin_end = now_ns() + options_.spin_ns;
      do
        for (int i = 0; i < 64 && !on; i++, relax()) on = met(blocked_);
      while (!on && !failed() && now_ns() < spin_end);
    }
    // A yield that comes back at once gave the core to nobody: then only sleep lets the peer run (or nobody needs the core).
    for (int i = 0, idle = 0; i < kYields && idle < kIdleYields && !on; i++) {
      const int64_t before = now_ns();
      sched_yield();
      on = met(blocked_);
      idle = now_ns() - before < kIdleYieldNs ? idle + 1 : 0;
    }
    while (!on) {
      check_blocked(ring_[(completed() + 1) % kRing]);
      if (failed()) return true;
      if (now_ns() >= until_ns) return false;
      sleep_blocked(until_ns);
      on = met(blocked_);
    }
  }
}

void Engine::fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const {
  if (!blocked.release) {
    transport_.word(channel_, blocked.peer, blocked.tick, word);
    return;
  }
  auto* line = const_cast<ReleaseLine*>(blocked.release);
  word->word = reinterpret_cast<uint32_t*>(&line->position);  // its low half: little endian
  word->value = std::atomic_ref(*word->word).load(std::memory_order_relaxed);
  word->sleepers = &line->sleepers;
  word->processor = -1;
}

void Engine::sleep_blocked(int64_t until_ns) {
  const int64_t slice = Deadline::at(until_ns).left_ns(kSleepSliceNs);
  fsccl_transport_word_t word;
  fill_word(blocked_, &word);
  if (met(blocked_)) return;
  counters_.sleeps++;
  futex_sleep(word.word, word.value, word.sleepers, slice);
}

// Ranks whose signal, or release, the operation still waits for.
std::string Engine::missing(const Operation& op) const {
  std::string text;
  if (!op.begun) return fmt::format("{} (its own operation before this one)", known_as(rank_));
  const Step& step = op.plan->steps[op.step];
  const bool all = step.kind != StepKind::wait || step.peer == kAllPeers;
  int listed = 0;
  for (int peer = all ? op.peer : step.peer; peer < (all ? ranks_ : step.peer + 1); peer++) {
    Blocked blocked = blocked_;
    blocked.peer = peer;
    if (blocked.release) blocked.release = op.releases[peer];
    if (peer == rank_ || met(blocked)) continue;
    if (++listed > 8) return text + " and more";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", known_as(peer));
  }
  return text;
}

void Engine::look_for_failure() {
  const fsccl_transport_failure_t* board = transport_.failure(channel_);
  if (!board) return;
  Error error;
  error.rank = known_as(rank_);
  error.code = board->code < 0 ? static_cast<fsccl_status_t>(board->code) : FSCCL_ERR_PROTOCOL;
  error.peer = board->peer == error.rank || board->peer < 0 ? board->rank : board->peer;
  error.text.assign(board->text, strnlen(board->text, sizeof board->text));
  fail_all(error);
}

void Engine::check_blocked(Operation& op) {
  look_for_failure();
  if (failed()) return;
  const int rank = known_as(rank_), peer = known_as(blocked_.peer);
  const auto fail_with = [&](fsccl_status_t code, std::string text) {
    Error error;
    error.code = code;
    error.rank = rank;
    error.peer = peer;
    error.operation = op_name(op.fingerprint.op);
    error.sequence = op.fingerprint.sequence;
    error.text = std::move(text);
    fail_all(error);
  };
  uint8_t lost = lost_[static_cast<size_t>(blocked_.peer)].load(std::memory_order_acquire);
  if (!lost && transport_.left(channel_, blocked_.peer)) lost = 2;
  if (lost && !met(blocked_))
    return fail_with(FSCCL_ERR_PEER_DEAD,
                     fmt::format("rank {} {} while {} waited for it", peer,
                                 lost == 2 ? "has left (destroyed its communicator)" : "died", describe(op.fingerprint)));
  if (op.deadline_ns == 0) op.deadline_ns = Deadline::in_ms(options_.timeout_ms).at_ns();
  if (now_ns() < op.deadline_ns) return;
  fail_with(FSCCL_ERR_TIMEOUT,
            fmt::format("{} on '{}' passed its deadline of {} ms; rank {} still waits for rank(s) {}{}. See FSCCL_TIMEOUT_MS",
                        describe(op.fingerprint), options_.name, options_.timeout_ms, rank, missing(op),
                        blocked_.release && op.begun ? " to give back a slot (reshard)" : ""));
}

void Engine::fail_all(const Error& error) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failed_.load(std::memory_order_relaxed)) return;
    error_ = error;
    failed_.store(true, std::memory_order_release);
  }
  fsccl_transport_failure_t board{};
  board.code = error.code;
  board.rank = known_as(rank_);
  board.peer = error.peer;
  std::memcpy(board.text, error.text.data(), std::min(error.text.size(), sizeof board.text - 1));
  transport_.fail(channel_, &board);
  if (notifications_.all_due()) Progress::instance().attend(this);
  if (options_.inside) options_.inside->look_for_failure();
}

void Engine::lost(int rank, bool left) {
  lost_[static_cast<size_t>(rank)].store(left ? 2 : 1, std::memory_order_release);
  if (left) return;
  Error error;
  error.code = FSCCL_ERR_PEER_DEAD;
  error.rank = known_as(rank_);
  error.peer = known_as(rank);
  error.text = fmt::format("rank {} of '{}' died", error.peer, options_.name);
  fail_all(error);
}

Status Engine::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return Status(error_);
}

Engine::Attempt Engine::try_progress(fsccl_transport_word_t* word) {
  do {
    notify_due();
    if (!try_drive()) {
      missed_.store(true, std::memory_order_relaxed);
      return Attempt::busy;
    }
    if (drive() != Outcome::done || !unattended()) break;
    driving_.store(false, std::memory_order_release);
  } while (true);
  const bool pending = unattended();
  if (pending) {
    check_blocked(ring_[(completed() + 1) % kRing]);
    fill_word(blocked_, word);
    if (met(blocked_)) word->value = ~word->value;  // do not sleep on it
  }
  driving_.store(false, std::memory_order_release);
  return pending && !failed() ? Attempt::blocked : Attempt::idle;
}

}  // namespace fsccl
