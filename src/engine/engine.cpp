#include "engine/engine.h"

#include "base/wait.h"
#include "engine/progress.h"
#include "record/message_names.h"

namespace fsccl {
namespace {

constexpr int64_t kTakeOverNapNs = 50'000;
constexpr int64_t kDriversMs = 2'000;  // longer than any step takes
// After so many polls for a peer, the service thread looks at the other engines again.
constexpr int kPollsOfAVisit = 16;

}  // namespace

static_assert(FSCCL_TRANSPORT_TICKS >= 2 * kTickWindow &&
              FSCCL_TRANSPORT_SLOTS >= kTickWindow + 2);  // tick_window.h

Engine::Engine(EngineOptions options)
    : options_(std::move(options)),
      failure_(options_, *this, queue_),
      queue_(failure_),
      runner_(options_, failure_, tally_, sites_) {
  Progress::instance().expect();
}

Engine::~Engine() {
  Progress::instance().forget(this);
  queue_.notifications.notify(completed(), failed() ? failure_code() : FSCCL_ERR_ABORTED);
  options_.channel.reset();
}

Status Engine::acquire(Operation** operation, const OperationSettings& settings,
                       const Fingerprint& fingerprint) {
  uint64_t sequence = queue_.submitted() + 1;
  if (failed()) [[unlikely]]
    return failure();
  while (sequence - completed() > Queue::kRing) [[unlikely]] {
    fsccl_status_t state;
    FSCCL_TRY(wait(sequence - Queue::kRing, -1, &state));
    sequence = queue_.submitted() + 1;  // a callback may have submitted in this thread
  }
  *operation = &queue_.place(sequence, settings, fingerprint);
  return success();
}

Status Engine::submit(Operation& op, bool wait_for_it, fsccl_status_t* state, Begins begins) {
  const uint64_t sequence = op.fingerprint.sequence;
  if (sums_under_way() && !goes_ahead_of_sums(op.fingerprint.op)) [[unlikely]]
    FSCCL_TRY(follow_sums(op));
  sites_.mark(op.fingerprint);
  record(recording::Event::submitted, op.fingerprint, op.fingerprint.root);
  if (wait_for_it) {
    queue_.submit(sequence, Queue::Order::release);
    return wait(sequence, -1, state);
  }
  // This store comes before the load of `attended`. It pairs with Progress::move_on(), which writes
  // `attended` before it checks whether an operation is under way.
  queue_.submit(sequence, Queue::Order::seen);
  *state = FSCCL_IN_PROGRESS;
  if (begins == Begins::now) FSCCL_TRY(test(sequence, state));
  if (*state == FSCCL_IN_PROGRESS && !attended.load(std::memory_order_seq_cst))
    Progress::instance().attend(this);
  return success();
}

Status Engine::run_small(const SmallCall& call, fsccl_status_t* state) {
  const uint64_t sequence = queue_.submitted() + 1;
  SmallCursor cursor{{call.plan, call.asks, *call.fingerprint}, call, call.plan->slots[0] != 0};
  cursor.fingerprint.sequence = sequence;
  sites_.mark(cursor.fingerprint);
  bool done = false;
  try {
    done = runner_.run(cursor, options_.recorder, options_.recorded_as);
  } catch (const std::bad_alloc&) {
    failure_.fail_without_memory();
  }
  if (done) [[likely]] {
    tally_.completed(call.fingerprint->op);
    queue_.complete();
    if (runner_.mirrored()) options_.channel->rest();
  } else {
    go_on_in_ring(cursor);
  }
  queue_.submit(sequence, Queue::Order::release);  // comes last (queue.h)
  if (!done) [[unlikely]]
    return wait(sequence, -1, state);
  *state = FSCCL_OK;
  return success();
}

void Engine::set_site(uint64_t key) {
  sites_.set(key);
  failure_.each_bound([key](Engine& part) { part.sites_.set(key); });
}

uint64_t Engine::submitted_with_parts() {
  uint64_t all = submitted();
  failure_.each_bound([&](const Engine& part) { all += part.submitted(); });
  return all;
}

void Engine::go_on_in_ring(const SmallCursor& cursor) {
  runner_.fence_slots();
  const SmallCall& call = cursor.call;
  Operation& op = queue_.place(cursor.fingerprint.sequence, *call.settings, cursor.fingerprint);
  static_cast<Cursor&>(op) = cursor;
  if (op.plan == op.fallback) op.take_fallback();
  for (size_t i = 0; i < call.buffers.size(); i++) op.inline_bindings[i].base = call.buffers[i];
  if (call.asks)
    for (uint32_t i = 0; i < op.publishes; i++)
      op.inline_bindings[op.published[i]].location = call.published[i];
  op.begun = true;
  record(recording::Event::submitted, op.fingerprint, op.fingerprint.root);
}

Runner::Outcome Engine::drive() noexcept {
  // If nothing is under way, another thread may own the driver's data (queue.h).
  if (!under_way()) return Runner::Outcome::done;
  drove_ = true;
  Runner::Outcome outcome = Runner::Outcome::failed;
  try {
    outcome = drive_on();
  } catch (const std::bad_alloc&) {
    failure_.fail_without_memory();
  }
  runner_.fence_slots();  // another thread may drive next
  return outcome;
}

Runner::Outcome Engine::drive_on() {
  while (under_way()) {
    if (failed()) [[unlikely]]
      return Runner::Outcome::failed;
    Operation& op = queue_.head();
    if (!FSCCL_INVARIANT(failure_, op.fingerprint.sequence == completed() + 1))
      return Runner::Outcome::failed;
    if (!op.begun) {
      if (op.gate && !gate_open(op)) [[unlikely]]
        return failed() ? Runner::Outcome::failed : Runner::Outcome::blocked;
      runner_.begin(op);
    }
    const Runner::Outcome outcome = runner_.run(op);
    if (outcome != Runner::Outcome::done) return outcome;
    if (op.complete && op.complete(op) == Completion::again) {
      runner_.begin_again(op);
      continue;
    }
    op.state.reset();
    if (queue_.notifications.due(complete(op))) [[unlikely]]
      return Runner::Outcome::done;
  }
  return Runner::Outcome::done;
}

uint64_t Engine::complete(const Operation& op) {
  record(recording::Event::completed, op.fingerprint, -1);
  tally_.completed(op.fingerprint.op);
  return queue_.complete();
}

bool Engine::gate_open(Operation& op) {
  const auto open = [&] { return op.gate->reached() >= op.gate_position; };
  if (open()) return true;
  fsccl_status_t state;
  const Status status = op.gate_engine->test(op.gate_sequence, &state, Calls::elsewhere);
  if (open()) return true;
  if (!status.ok()) fail_all(status.error());
  runner_.block_on(op.gate, op.gate_position);
  return false;
}

// Tells the transport that this thread stops driving.
void Engine::rest() {
  if (std::exchange(drove_, false)) options_.channel->rest();
}

void Engine::stop_driving(Calls calls) {
  rest();
  queue_.leave();
  // A thread that found this one driving has left without sleeping on the operation's word. The
  // service thread attends to the operation from now on.
  if (queue_.take_missed() && unattended()) [[unlikely]]
    Progress::instance().attend(this);
  if (!queue_.notifications.due(completed())) [[likely]]
    return;
  if (calls == Calls::here) return notify_due();
  Progress::instance().attend(this);
}

void Engine::notify_due() {
  if (!queue_.notifications.due(completed())) return;
  // The failure is read before completed(), so an operation that completed before the failure
  // counts as a success.
  const bool over = failed();
  if (over && !look_back()) return;  // the driver or the service thread notifies then
  queue_.notifications.notify(completed(), over ? failure_code() : FSCCL_OK);
}

void Engine::notify(uint64_t sequence, Notification notification) {
  const auto over = [&] { return completed() >= sequence || (failed() && look_back()); };
  if (over()) {
    const fsccl_status_t status = completed() >= sequence ? FSCCL_OK : failure_code();
    return Notifications::call(std::move(notification), status);
  }
  queue_.notifications.add(sequence, std::move(notification));
  // A driver that completes the operation at this moment may not see the notification. Then this
  // thread or the service thread notifies.
  const bool seen = over();
  if (failed()) queue_.notifications.all_due();
  notify_due();
  if (!seen) Progress::instance().attend(this);
}

Status Engine::test(uint64_t sequence, fsccl_status_t* state, Calls calls) {
  while (completed() < sequence && !failed() && queue_.try_drive()) {
    const bool stuck = drive() != Runner::Outcome::done;
    stop_driving(calls);
    // An operation that was never submitted does not complete.
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

std::optional<bool> Engine::has_come(int peer) {
  if (under_way() || !queue_.try_drive()) return std::nullopt;
  const bool come = !under_way() && runner_.has_come(peer);
  stop_driving(Calls::elsewhere);
  return come;
}

// Moves operations on for the service thread. `word` is written only for an operation that drive()
// has reached, because another thread may still be writing the operation behind it.
Engine::Attempt Engine::try_progress(fsccl_transport_word_t* word) {
  while (true) {
    notify_due();
    if (!queue_.try_drive()) {
      queue_.note_missed();
      return Attempt::busy;
    }
    Runner::Outcome outcome = drive();
    for (int polls = 0; outcome == Runner::Outcome::blocked && polls < kPollsOfAVisit; polls++) {
      if (!peer_answers_soon()) break;
      outcome = drive();
    }
    const bool more = outcome == Runner::Outcome::done && unattended(),
               blocked = outcome == Runner::Outcome::blocked;
    if (!more) rest();
    if (blocked) {
      record_blocked();
      check_blocked(queue_.head());
      runner_.fill_word(runner_.blocked(), word);
      // The word does not have this value, so the thread does not sleep on it.
      if (runner_.met(runner_.blocked())) word->value = ~word->value;
    }
    queue_.leave();
    if (blocked && !failed()) return Attempt::blocked;
    // Otherwise an operation was submitted meanwhile by a thread that saw this one drive.
    if (!unattended()) return Attempt::idle;
  }
}

// Waits until no thread drives, but no longer than kDriversMs. A driver leaves after its present
// step, or at its next look after a sleep. Waiting for peers that touch buffers has a limit of its
// own (look_at_head()), so that a slow driver takes no time from it.
void Engine::await_drivers() noexcept {
  wait_until([this] { return look_back(); }, Deadline::in_ms(kDriversMs), kNothingBreaks,
             Naps(kTakeOverNapNs));
}

void Engine::give_up(const Error* why) noexcept {
  why ? failure_.fail_all(*why) : failure_.fail_without_memory();
  await_drivers();
}

// Waits until no thread drives, which takes little time, because the engine has failed or has
// nothing under way. A thread that drives later looks at no operation, because `looked_back_` is
// set.
void Engine::retire() {
  wait_until([this] { return queue_.try_drive(); }, Deadline::never(), kNothingBreaks,
             Naps(kTakeOverNapNs));
  // This store pairs with the load in look_at_head().
  looked_back_.store(true, std::memory_order_release);
  queue_.leave();
}

void Engine::retire_failed() noexcept {
  if (!failed()) return;
  await_drivers();
  retire();
}

bool Engine::look_back() noexcept {
  if (failure_.being_driven()) return false;
  bool all = look_at_head();
  failure_.each_bound([&](Engine& other) { all &= other.look_at_head(); });
  return all;
}

bool Engine::look_at_head() noexcept {
  if (looked_back_.load(std::memory_order_acquire)) return true;  // pairs with the stores to it
  if (!queue_.try_drive()) return false;
  options_.channel->await_untouched(Deadline::in_ms(kDriversMs));
  try {
    while (!looked_back_.load(std::memory_order_relaxed) && under_way() &&
           runner_.finish_from_signals(queue_.head()))
      complete(queue_.head());
  } catch (const std::bad_alloc&) {  // without memory the operation counts as failed
  }
  // This store pairs with the load above.
  looked_back_.store(true, std::memory_order_release);
  queue_.leave();
  return true;
}

}  // namespace fsccl
