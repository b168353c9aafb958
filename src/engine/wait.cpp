// How a thread waits for an operation. It drives the engine itself or lets the thread that drives
// do so. It polls, yields and sleeps, and checks for events that end a wait without the peer
// (blocked.cpp).
#include <sched.h>

#include "base/fetch.h"
#include "engine/engine.h"

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

// These constants say how a waiting thread spends its time before it sleeps. The first three are
// for a thread that waits while another one drives. A yield lets a peer run that shares the core.
constexpr int kDriverSpins = 64, kDriverYields = 64;
constexpr int64_t kDriverNapNs = 50'000;
constexpr int kYields = 40;
// A yield is idle if it returns at once, because no other thread wants the core. A thread sleeps
// after a few idle yields. It is more patient between hosts, and if the core is this rank's own: to
// wake it takes up to 0.3 ms if a hypervisor must start the core. A thread that sleeps too early is
// therefore late for the next call, and its peer goes to sleep in turn.
constexpr int kIdleYields = 4;
constexpr int64_t kPatientYieldsNs = 200'000;
// An idle yield takes some 0.25 us, and one that lets another thread run at least 1.2 us.
constexpr int64_t kIdleYieldNs = 800;
// The service thread polls so often for a peer that is in the same operation, which takes some tens
// of microseconds, and leaves out so many of these turns at most.
constexpr int kServiceLooks = 1000, kMostLeftOut = 63;
// A sleeper notices events that do not wake it, such as deadlines and losses, after at most this
// time.
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
    if (failed() || !queue_.try_drive()) return false;
    // The result is false if the thread stopped for a notification or passed its time limit.
    const bool is_over = await_driving(sequence, until_ns);
    stop_driving(calls);
    return is_over;
  };
  Naps naps(kDriverYields, kDriverNapNs, kDriverNapNs);
  // Another thread drives and needs no help.
  auto pause = [&, tries = 0](int64_t left_ns) mutable {
    queue_.note_missed();
    tries++ < kDriverSpins ? relax() : naps(left_ns);
  };
  return wait_until(
             over, Deadline::at(until_ns), [this] { return failed(); }, pause) != WaitEnd::late;
}

// Waits until the operation at the head can go on, or until `look` returns true. A failure of the
// engine ends the wait, too. check_blocked() turns a passed deadline and the loss of a rank into a
// failure.
template <class Look, class Pause>
WaitEnd Engine::await_blocked(int64_t until_ns, const Look& look, const Pause& pause) {
  const auto broken = [this] {
    check_blocked(queue_.head());
    return failed();
  };
  return wait_until([&] { return runner_.met(runner_.blocked()) || look(); },
                    Deadline::at(until_ns), broken, pause);
}

// Waits while the gate of the operation at the head is closed, and drives the gate's engine.
WaitEnd Engine::await_gate(int64_t until_ns, Operation& op) {
  const auto drive_gate = [&](int64_t left_ns) {
    (void)op.gate_engine->await(op.gate_sequence, now_ns() + std::min(left_ns, kSleepSliceNs),
                                Calls::elsewhere);
  };
  const auto gate_failed = [&] { return op.gate_engine->failed(); };  // drive() takes it over
  return await_blocked(until_ns, gate_failed, drive_gate);
}

// Waits for a slot that sums of this rank free. This thread makes the sums meanwhile if no other
// thread does.
WaitEnd Engine::await_sums(int64_t until_ns) {
  Engine& makes = *apart_.engine();
  const auto make = [&](int64_t left_ns) {
    (void)makes.await(makes.submitted(), now_ns() + std::min(left_ns, kSleepSliceNs),
                      Calls::elsewhere);
  };
  const auto over = [&] { return makes.failed() || !makes.under_way(); };
  return await_blocked(until_ns, over, make);
}

// Moves this engine's operations on, because a thread that waits for them may share the core with
// this one.
void Engine::let_pass() {
  if (!under_way() || failed()) return;
  fsccl_status_t state;
  (void)test(submitted(), &state, Calls::elsewhere);
  if (under_way() && queue_.driven()) yield_core();
}

bool Engine::await_driving(uint64_t sequence, int64_t until_ns) {
  while (true) {
    const Outcome outcome = drive();
    if (completed() >= sequence || failed()) return true;
    if (outcome == Outcome::done) [[unlikely]]
      return false;
    if (Operation& op = queue_.head(); op.gate && !op.begun) [[unlikely]] {
      if (const WaitEnd end = await_gate(until_ns, op); end != WaitEnd::held)
        return end == WaitEnd::broken;
      continue;
    }
    if (!waits_for_sums() && poll_blocked()) [[likely]]
      continue;
    record_blocked();
    if (waits_for_sums()) [[unlikely]] {
      if (const WaitEnd end = await_sums(until_ns); end != WaitEnd::held)
        return end == WaitEnd::broken;
      continue;
    }
    FutexSleeper sleeper;
    const WaitEnd end = await_blocked(
        until_ns, [] { return false; }, [&](int64_t left_ns) { sleep_blocked(sleeper, left_ns); });
    if (end != WaitEnd::held) return end == WaitEnd::broken;
  }
}

// Polls in three stages before a sleep: bare polls, then polls with pauses if no other thread needs
// the core, then yields. Returns whether the signal or release that the operation waits for has
// come.
bool Engine::poll_blocked() {
  const Blocked& blocked = runner_.blocked();
  for (int i = 0, polls = runner_.bare_polls(); i < polls; i++)
    if (runner_.met(blocked)) [[likely]]
      return true;
  // A peer that shares the core cannot run while this thread spins.
  const bool same_core = !mirrored() && on_our_core(blocked);
  const bool own_core = !options_.oversubscribed && !same_core;
  if (own_core) {
    const int64_t spin_end = now_ns() + options_.spin_ns;
    do
      for (int i = 0; i < 64; i++, relax())
        if (runner_.met(blocked)) return true;
    while (!failed() && now_ns() < spin_end);
  }
  // An idle yield gave the core to no thread. If the peer shares the core, it runs only when this
  // thread sleeps.
  int64_t now = now_ns();
  const int64_t patience_end = now + kPatientYieldsNs;
  const auto patient = [&](int yields, int idle) {
    const bool for_long = mirrored() || (own_core && idle == yields);
    return (for_long && now < patience_end) || (yields < kYields && idle < kIdleYields);
  };
  for (int i = 0, idle = 0; patient(i, idle) && yield_rest_.over(now); i++) {
    yield_core();
    const bool come = runner_.met(blocked);
    const int64_t took = now_ns() - now;
    now += took;
    idle = took < kIdleYieldNs ? idle + 1 : 0;
    yield_rest_.yielded(took, now);
    if (come) return true;
  }
  return false;
}

// Polls, in the service thread, for what the operation at the head waits for, and returns whether
// it has come. A sleep for each signal of a large operation would cost two thread switches for each
// of its pieces. A peer that is running in the same operation answers within microseconds, but one
// that does not run now does not. After a poll in vain the next polls are therefore left out: one,
// three, seven, and so on.
bool Engine::peer_answers_soon() {
  const Blocked& blocked = runner_.blocked();
  const Operation& op = queue_.head();
  if (failed() || !op.begun || blocked.release || mirrored() || options_.oversubscribed ||
      (op.round == 0 && blocked.tick == op.tick))
    return false;
  if (polls_to_leave_out_ > 0) return polls_to_leave_out_--, false;
  for (int i = 0; i < kServiceLooks; i++, relax())
    if (runner_.met(blocked)) {
      leaves_out_ = 0;
      return true;
    }
  polls_to_leave_out_ = leaves_out_ = std::min(2 * leaves_out_ + 1, kMostLeftOut);
  return false;
}

bool Engine::on_our_core(const Blocked& blocked) const {
  fsccl_transport_word_t word;
  runner_.fill_word(blocked, &word);
  return word.processor >= 0 && word.processor == sched_getcpu();
}

void Engine::sleep_blocked(FutexSleeper& sleeper, int64_t ns) {
  fsccl_transport_word_t word;
  runner_.fill_word(runner_.blocked(), &word);
  if (runner_.met(runner_.blocked())) return;
  const int64_t begin_ns = now_ns();
  sleeper.sleep(word.word, word.value, word.sleepers, std::min(ns, kSleepSliceNs));
  tally_.slept(now_ns() - begin_ns);
}

}  // namespace fsccl
