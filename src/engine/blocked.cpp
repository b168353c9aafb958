// The events other than the peer's signal that end the wait of a blocked operation: its deadline,
// the loss of a rank, and a failure on the failure board. Errors list the ranks that are missing.
#include "bootstrap/job.h"
#include "engine/engine.h"
#include "fsccl/insight.h"
#include "record/message_names.h"

namespace fsccl {
namespace {

// A signal of a sender that has left may still be under way, because TCP tries again after 0.2, 0.6
// and 1.4 s.
constexpr int64_t kUnderWayNs = 2'000'000'000;
constexpr int64_t kLongestLookNs = 20'000'000;  // the most time that counts between two looks
// In a plan in which ranks pass on what they received, a rank may wait for a peer that itself waits
// for a third rank. It gives the peer so much longer, so that the peer reports the late rank first.
constexpr int64_t kHearsayNs = 100'000'000;
// A rank that learns of a death ends its communicators, so the news that it has left may come
// before the news of the death. A departure is therefore reported only after this time.
constexpr int64_t kNewsOfDeathNs = 100'000'000;

}  // namespace

// Records a long wait, once for each operation and peer, when it is about to sleep.
void Engine::record_blocked() {
  if (!options_.recorder) return;
  const int peer = runner_.blocked().peer;
  const uint64_t sequence = completed() + 1, what = sequence << 16 | static_cast<uint16_t>(peer);
  if (recorded_blocked_ == what) return;
  recorded_blocked_ = what;
  // A wait for a slot carries the number of the reduction that frees it.
  Fingerprint what_waits = queue_.head().fingerprint;
  what_waits.kind = 0;
  if (queue_.head().begun && runner_.blocked().release) {
    what_waits.kind = static_cast<uint8_t>(recording::Duty::release_slot);
    what_waits.count = freed_by();
  }
  record(recording::Event::blocked, what_waits, options_.members[static_cast<size_t>(peer)]);
  options_.recorder->look_at_clock();
}

// Returns true if the peer that the operation waits for may itself wait for another rank.
bool Engine::hearsay(const Operation& op) const {
  return op.begun && op.plan->relayed && op.step < op.plan->steps.size() &&
         op.plan->steps[op.step].tick > 0;
}

// Lists the ranks whose signals, or releases, the operation still waits for.
std::string Engine::missing(const Operation& op) const {
  std::string text;
  if (!op.begun) return fmt::format("{} (its own operation before this one)", known_as(rank()));
  if (hearsay(op))
    return fmt::format("{}{}, or one that it waits for", known_as(runner_.blocked().peer),
                       silence_of(runner_.blocked().peer));
  // If all its steps are done, it waits for signals that earlier calls did not wait for.
  const Step step = op.step < op.plan->steps.size() ? op.plan->steps[op.step] : Step{};
  const bool all = step.kind != StepKind::wait || step.peer == kAllPeers;
  int listed = 0;
  for (int peer = all ? op.peer : step.peer; peer < (all ? ranks() : step.peer + 1); peer++) {
    Blocked blocked = runner_.blocked();
    blocked.peer = peer;
    if (blocked.release) blocked.release = op.releases[peer];
    const bool own = peer == rank() && !(blocked.release && op.releases_elsewhere);
    if (own || runner_.met(blocked)) continue;
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

// Returns what the error adds if the missing ranks have to give back a slot.
std::string Engine::awaited_release() const {
  const uint64_t reduction = freed_by();
  return reduction ? fmt::format(" to give back a slot (the sums of {}, operation {})",
                                 op_name(OpCode::reduce_grads), reduction)
                   : std::string(" to give back a slot (reshard)");
}

// Returns a number that tells what this rank waits for from what it waited for before.
uint64_t Engine::awaited(uint64_t sequence) const {
  return sequence << 16 | static_cast<uint16_t>(runner_.blocked().peer);
}

// Returns true if a signal of the peer may still be under way over the network. Only time in which
// this thread looks counts, at most kLongestLookNs between two looks. A process that was stopped or
// busy finds at once much of what came meanwhile, but perhaps not all of it at the first look.
bool Engine::still_under_way(uint64_t sequence) {
  const uint64_t what = awaited(sequence);
  const int64_t now = now_ns();
  looked_ns_ = looked_for_ == what ? looked_ns_ + std::min(now - looked_at_ns_, kLongestLookNs) : 0;
  looked_for_ = what;
  looked_at_ns_ = now;
  return looked_ns_ < kUnderWayNs;
}

// The operation waits for a peer that has left. Returns true if this rank has known that for less
// than kNewsOfDeathNs.
bool Engine::left_lately(uint64_t sequence) {
  const uint64_t what = awaited(sequence);
  const int64_t now = now_ns();
  if (left_for_ != what) left_for_ = what, left_ns_ = now;
  return now - left_ns_ < kNewsOfDeathNs;
}

// Returns true if the peer's process has left, or if the peer has closed the channel around this
// pair. It may never have opened the pair, so the pair's channel does not tell.
bool Engine::around_left(int peer) const {
  return failure_.has_left(peer) ||
         (options_.inside && options_.inside->options_.channel->left(known_as(peer)));
}

// The channel itself says that a peer has left when all of its messages are there. The job, or the
// channel around, may say so before messages over a network arrive.
bool Engine::is_gone(int peer) {
  if (options_.channel->left(peer)) return true;
  if (!around_left(peer)) return false;
  if (!mirrored()) return true;
  if (gone_ns_ == 0) gone_ns_ = now_ns();
  return now_ns() - gone_ns_ >= kUnderWayNs;
}

void Engine::check_blocked(Operation& op) noexcept {
  try {
    look_at_blocked(op);
  } catch (const std::bad_alloc&) {  // no memory for the text
    failure_.fail_without_memory();
  }
}

void Engine::look_at_blocked(Operation& op) {
  look_for_failure();
  if (!failed()) runner_.look_at_quiet(op);
  if (failed()) return;
  const Blocked& blocked = runner_.blocked();
  if (blocked.until_ns) return;  // the time limit of the wait will end it
  const int own = known_as(rank()), peer = known_as(blocked.peer);
  const auto end = [&](fsccl_status_t code, std::string text) {
    Error error;
    error.code = code;
    error.rank = own;
    error.peer = peer;
    error.operation = name_for(rank(), op.fingerprint);
    error.sequence = op.fingerprint.sequence;
    error.text = std::move(text);
    fail_all(error);
  };
  bool left = around_left(blocked.peer);
  if (op.deadline_ns == 0) op.deadline_ns = Deadline::in_ms(options_.timeout_ms).at_ns();
  // Either may be known before all that the rank sent over a network has arrived. The channel
  // itself reports that a rank has left only after these bytes.
  if (left && mirrored() && still_under_way(op.fingerprint.sequence)) left = false;
  if (!left) left = options_.channel->left(blocked.peer);
  if (left && !runner_.met(blocked)) {
    look_for_failure();  // perhaps it left because of a failure, which was reported first
    if (failed() || left_lately(op.fingerprint.sequence)) return;
    return end(FSCCL_ERR_PEER_DEAD, fmt::format("rank {} has left (destroyed its communicator, or "
                                                "its process ended) while {} waited for it",
                                                peer, describe_for(rank(), op.fingerprint)));
  }
  // If the rank is late for another engine's operation, that engine reports it first.
  const bool behind_another = !op.begun && op.gate;
  const int64_t grace_ns = behind_another || hearsay(op) ? kHearsayNs : 0;
  if (now_ns() - grace_ns < op.deadline_ns) return;  // the sum might be beyond an int64_t
  end(FSCCL_ERR_TIMEOUT,
      fmt::format("{} on '{}' passed its timeout of {} ms; rank {} still waits for rank(s) {}{}: "
                  "they may be late or stopped, may have called something else, or cannot be "
                  "reached{}. See FSCCL_TIMEOUT_MS",
                  describe_for(rank(), op.fingerprint), options_.name, options_.timeout_ms, own,
                  missing(op), blocked.release && op.begun ? awaited_release() : "",
                  op.fingerprint.op == OpCode::send
                      ? "; or both send to each other, each waiting for the other to receive: put "
                        "the calls into a group "
                        "(fsccl_group_start, fsccl_group_end)"
                      : ""));
}

}  // namespace fsccl
