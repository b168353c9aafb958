// How a thread waits: it drives the engine itself or leaves that to the one who does, polls,
// yields, sleeps, and looks out for what ends a wait without its peer (engine.h).
#include <sched.h>

#include <bit>

#include "base/fetch.h"
#include "base/futex.h"
#include "bootstrap/job.h"
#include "engine/executor.h"
#include "fsccl/insight.h"
#include "record/message_names.h"

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

// How a wait spends its time before it sleeps, after bare polls. Yields let a peer run that shares
// our core.
constexpr int kDriverSpins = 64, kDriverYields = 64;  // while another thread drives
constexpr int64_t kDriverNapNs = 50'000;
constexpr int kYields = 40;
constexpr int kIdleYields = 4;
// Of yields that nobody makes use of: to be woken takes up to 0.3 ms where a hypervisor must start
// the core, and who sleeps sooner is late for the next call, for which the peer then goes to sleep.
// Between hosts of any: a piece takes longer than a sleep.
constexpr int64_t kPatientYieldsNs = 200'000;
constexpr int64_t kIdleYieldNs = 1'500;
// more than peers' work mostly is, less than a slice of the scheduler's
constexpr int64_t kLongYieldNs = 2'500'000;
constexpr int64_t kNoYieldsNs = 20'000'000;
// once its sender has left: TCP tries again after 0.2, 0.6 and 1.4 s
constexpr int64_t kUnderWayNs = 2'000'000'000;
// who waits for a rank itself tells of it before those who wait for others' word
constexpr int64_t kHearsayNs = 100'000'000;
// how soon a sleeper notices what has no wake-up of its own: deadlines, losses
constexpr int64_t kSleepSliceNs = 10'000'000;

}  // namespace

Status Engine::wait(uint64_t sequence, int64_t timeout_ms, fsccl_status_t* state) {
  const int64_t until_ns = timeout_ms < 0 ? INT64_MAX : Deadline::in_ms(timeout_ms).at_ns();
  const bool done = await(sequence, until_ns);
  if (completed() < sequence && failed()) [[unlikely]] {
    await_drivers();
    if (completed() < sequence) return failure();
  }
  *state = done ? FSCCL_OK : FSCCL_IN_PROGRESS;
  return success();
}

bool Engine::await(uint64_t sequence, int64_t until_ns, Calls calls) {
  const auto over = [&] {
    if (completed() >= sequence) return true;
    if (failed() || !try_drive()) return false;
    // false: it stopped for a notification, or it is late
    const bool is_over = await_driving(sequence, until_ns);
    stop_driving(calls);
    return is_over;
  };
  Naps naps(kDriverYields, kDriverNapNs, kDriverNapNs);
  // Another thread drives. It needs no help, only patience.
  auto pause = [&, tries = 0](int64_t left_ns) mutable {
    missed_.store(true, std::memory_order_relaxed);
    tries++ < kDriverSpins ? relax() : naps(left_ns);
  };
  return wait_until(
             over, Deadline::at(until_ns), [this] { return failed(); }, pause) != WaitEnd::late;
}

// A failure ends the wait, as do the deadline of the operation and the loss of a rank, which
// check_blocked() turns into a failure.
template <class Look, class Pause>
WaitEnd Engine::await_blocked(int64_t until_ns, const Look& look, const Pause& pause) {
  const auto broken = [this] {
    check_blocked(at_head());
    return failed();
  };
  return wait_until([&] { return met(blocked_) || look(); }, Deadline::at(until_ns), broken, pause);
}

bool Engine::met(const Blocked& blocked) const {
  if (blocked.release) return blocked.release->reached() >= blocked.position;
  fetch_to_read(blocked.data, blocked.data_bytes);
  return transport_.poll(channel_, blocked.peer, blocked.tick) != nullptr;
}

bool Engine::await_driving(uint64_t sequence, int64_t until_ns) {
  while (true) {
    const Outcome outcome = drive();
    if (completed() >= sequence || failed()) return true;
    if (outcome == Outcome::done) [[unlikely]]
      return false;
    if (Operation& op = at_head(); op.gate && !op.begun) [[unlikely]] {
      const auto drive_gate = [&](int64_t left_ns) {
        (void)op.gate_engine->await(op.gate_sequence, now_ns() + std::min(left_ns, kSleepSliceNs),
                                    Calls::elsewhere);
      };
      // which drive() takes over
      const auto gate_failed = [&] { return op.gate_engine->failed(); };
      if (const WaitEnd end = await_blocked(until_ns, gate_failed, drive_gate);
          end != WaitEnd::held)
        return end == WaitEnd::broken;
      continue;
    }
    // Blocked: poll bare, then with pauses while there is a core for everybody, then yield, then
    // sleep.
    bool on = false;
    for (int i = 0, polls = mirrored() ? kNetworkPolls : kBarePolls; i < polls && !on; i++)
      on = met(blocked_);
    if (on) [[likely]]
      continue;
    // the peer cannot run while we spin
    const bool same_core = !mirrored() && on_our_core(blocked_);
    const bool own_core = !options_.oversubscribed && !same_core;
    if (own_core) {
      const int64_t spin_end = now_ns() + options_.spin_ns;
      do
        for (int i = 0; i < 64 && !on; i++, relax()) on = met(blocked_);
      while (!on && !failed() && now_ns() < spin_end);
    }
    // A yield that comes back at once gave the core to nobody: if the peer shares it, only sleep
    // lets that run. One that takes long gave it to somebody who computes: then who sleeps is back
    // sooner, once there is something to do.
    int64_t now = now_ns();
    const int64_t patience_end = now + kPatientYieldsNs;
    const auto patient = [&](int yields, int idle) {
      const bool for_long = mirrored() || (own_core && idle == yields);
      return (for_long && now < patience_end) || (yields < kYields && idle < kIdleYields);
    };
    for (int i = 0, idle = 0; patient(i, idle) && !on && now >= no_yields_until_; i++) {
      yield_core();
      on = met(blocked_);
      const int64_t took = now_ns() - now;
      now += took;
      idle = took < kIdleYieldNs ? idle + 1 : 0;
      if (took > kLongYieldNs) no_yields_until_ = now + kNoYieldsNs;
    }
    if (on) continue;
    record_blocked();
    const WaitEnd end = await_blocked(
        until_ns, [] { return false; }, [this](int64_t left_ns) { sleep_blocked(left_ns); });
    if (end != WaitEnd::held) return end == WaitEnd::broken;
  }
}

bool Engine::on_our_core(const Blocked& blocked) const {
  fsccl_transport_word_t word;
  fill_word(blocked, &word);
  return word.processor >= 0 && word.processor == sched_getcpu();
}

// Once for each operation and peer, when a wait is long enough to sleep.
void Engine::record_blocked() {
  if (!options_.recorder) return;
  const uint64_t sequence = completed() + 1,
                 what = sequence << 16 | static_cast<uint16_t>(blocked_.peer);
  if (recorded_blocked_ == what) return;
  recorded_blocked_ = what;
  record(recording::Event::blocked, ring_[sequence % kRing].fingerprint,
         options_.members[static_cast<size_t>(blocked_.peer)]);
  options_.recorder->look_at_clock();
}

void Engine::fill_word(const Blocked& blocked, fsccl_transport_word_t* word) const {
  if (!blocked.release) {
    transport_.word(channel_, blocked.peer, blocked.tick, word);
    return;
  }
  auto* line = const_cast<ReleaseLine*>(blocked.release);
  word->word = line->word();
  word->value = std::atomic_ref(*word->word).load(std::memory_order_relaxed);
  word->sleepers = &line->sleepers;
  word->processor = -1;
}

void Engine::sleep_blocked(int64_t ns) {
  fsccl_transport_word_t word;
  fill_word(blocked_, &word);
  if (met(blocked_)) return;
  const int64_t begin_ns = now_ns();
  futex_sleep(word.word, word.value, word.sleepers, std::min(ns, kSleepSliceNs));
  tally_.slept(now_ns() - begin_ns);
}

// Whether whom it waits for may have entered, and wait itself.
bool Engine::hearsay(const Operation& op) const {
  return op.begun && op.plan->relayed && op.step < op.plan->steps.size() &&
         op.plan->steps[op.step].tick > 0;
}

// Ranks whose signal, or release, the operation still waits for.
std::string Engine::missing(const Operation& op) const {
  std::string text;
  if (!op.begun) return fmt::format("{} (its own operation before this one)", known_as(rank_));
  if (hearsay(op))
    return fmt::format("{}{}, or one that it waits for", known_as(blocked_.peer),
                       silence_of(blocked_.peer));
  // Behind its last step it waits for what calls before it left for later.
  const Step step = op.step < op.plan->steps.size() ? op.plan->steps[op.step] : Step{};
  const bool all = step.kind != StepKind::wait || step.peer == kAllPeers;
  int listed = 0;
  for (int peer = all ? op.peer : step.peer; peer < (all ? ranks_ : step.peer + 1); peer++) {
    Blocked blocked = blocked_;
    blocked.peer = peer;
    if (blocked.release) blocked.release = op.releases[peer];
    if (peer == rank_ || met(blocked)) continue;
    if (++listed > 8) return text + " and more";
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", known_as(peer), silence_of(peer));
  }
  return text;
}

std::string Engine::silence_of(int rank) const {
  if (!options_.job) return {};
  const PeerLife life = options_.job->life(options_.members[static_cast<size_t>(rank)]);
  return life.state == FSCCL_PEER_SUSPECT ? fmt::format(" (suspect: {})", describe(life))
                                          : std::string();
}

// Only while we look does time count: who was stopped, or busy, finds much at once that came
// meanwhile, and not all at the first look.
bool Engine::still_under_way(uint64_t sequence) {
  const uint64_t what = sequence << 16 | static_cast<uint16_t>(blocked_.peer);
  const int64_t now = now_ns();
  looked_ns_ =
      looked_for_ == what ? looked_ns_ + std::min(now - looked_at_ns_, 2 * kSleepSliceNs) : 0;
  looked_for_ = what;
  looked_at_ns_ = now;
  return looked_ns_ < kUnderWayNs;
}

void Engine::check_blocked(Operation& op) noexcept {
  try {
    look_at_blocked(op);
  } catch (const std::bad_alloc&) {  // of the text
    fail_without_memory();
  }
}

// Who has to wait tells what it calls, also where that is optional, and looks at what others told
// of calls that it was not to hear of: ranks that disagree about such a call might otherwise wait
// for each other. Not at once, and ever more seldom: it asks for a line of every peer, and a
// thousand ranks may be waiting.
void Engine::look_at_quiet(Operation& op) {
  waits_ = std::exchange(waited_for_, op.fingerprint.sequence) == op.fingerprint.sequence
               ? waits_ + 1
               : 0;
  if (!std::has_single_bit(waits_)) return;
  const auto look = [&](uint32_t tick, const Fingerprint& mine) {
    for (int peer = 0; peer < ranks_ && !failed(); peer++)
      if (const auto* line = peer == rank_ ? nullptr : transport_.poll(channel_, peer, tick))
        (void)check_enter(mine, peer, *line);
  };
  for (uint32_t i = 0; i < pending_count_; i++) {
    const Pending& round = pending_[(pending_begin_ + i) % kWindow];
    if (round.quiet) look(round.tick, round.fingerprint);
  }
  if (!op.begun || op.step == 0) return;
  const Step& first = op.plan->steps.front();
  if (told_ != op.tick && leaves_out(first, *op.plan, op.tick)) {
    Executor(*this, op).signal(first);
    told_ = op.tick;
  }
  look(op.tick, op.fingerprint);
}

void Engine::look_at_blocked(Operation& op) {
  look_for_failure();
  if (!failed()) look_at_quiet(op);
  if (failed()) return;
  const int rank = known_as(rank_), peer = known_as(blocked_.peer);
  const auto end = [&](fsccl_status_t code, std::string text) {
    Error error;
    error.code = code;
    error.rank = rank;
    error.peer = peer;
    error.operation = name_for(rank_, op.fingerprint);
    error.sequence = op.fingerprint.sequence;
    error.text = std::move(text);
    fail_all(error);
  };
  bool left = departed_[static_cast<size_t>(blocked_.peer)].load(std::memory_order_acquire);
  if (op.deadline_ns == 0) op.deadline_ns = Deadline::in_ms(options_.timeout_ms).at_ns();
  // The job's word that a rank has left can overtake what it sent over a network; the channel's own
  // comes behind that.
  if (left && mirrored() && still_under_way(op.fingerprint.sequence)) left = false;
  if (!left) left = transport_.left(channel_, blocked_.peer) != 0;
  if (left && !met(blocked_)) {
    look_for_failure();  // why it left, perhaps: that was told before
    if (failed()) return;
    return end(FSCCL_ERR_PEER_DEAD, fmt::format("rank {} has left (destroyed its communicator, or "
                                                "its process ended) while {} waited for it",
                                                peer, describe_for(rank_, op.fingerprint)));
  }
  if (now_ns() < op.deadline_ns + (hearsay(op) ? kHearsayNs : 0)) return;
  end(FSCCL_ERR_TIMEOUT,
      fmt::format("{} on '{}' passed its timeout of {} ms; rank {} still waits for rank(s) {}{}: "
                  "late, stopped, or "
                  "they cannot be reached{}. See FSCCL_TIMEOUT_MS",
                  describe_for(rank_, op.fingerprint), options_.name, options_.timeout_ms, rank,
                  missing(op), blocked_.release && op.begun ? " to give back a slot (reshard)" : "",
                  op.fingerprint.op == OpCode::send
                      ? "; or both send to each other, each waiting for the other to receive: put "
                        "the calls into a group "
                        "(fsccl_group_start, fsccl_group_end)"
                      : ""));
}

}  // namespace fsccl
