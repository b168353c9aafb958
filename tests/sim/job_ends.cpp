// The end of a simulated job: how ranks leave and die, when which ranks hear of it, and the
// invariants that must hold at the end.
#include <algorithm>

#include "job.h"

namespace fsccl::sim {
namespace {

// The time in which waits end after the rank knows of a death or an abort.
constexpr int64_t kReactionNs = 50 * kMillisecond;
// How long before or after the stop of a peer a wait for it may have begun.
constexpr int64_t kBeforeNs = 30 * kSecond;
constexpr int64_t kEndNs = 3600 * kSecond;  // by then all is over
// The time from the last operation of a rank to its leaving.
constexpr int64_t kLingerNs = 50 * kMillisecond;

}  // namespace

void Job::end(int r) {
  Rank& me = rank(r);
  me.over = true;
  if (!me.over_ns) me.over_ns = world_.now();
  world_.after(world_.between(0, kLingerNs), [this, r] { go(r); });
}

// Lets a rank destroy its communicator. The news of that may overtake what the rank sent before.
void Job::go(int r) {
  Rank& me = rank(r);
  if (me.dead || me.gone) return;
  world_.note("rank {} leaves", r);
  me.pairs.clear();
  me.collectives.reset();
  me.engine.reset();
  me.gone = true;
  for (int other = 0; other < setting_.ranks; other++) tell(other, r, true);
}

void Job::die(int r) {
  Rank& me = rank(r);
  if (me.dead || me.gone) return;
  world_.note("rank {} dies", r);
  me.dead = true;
  dead_.push_back(r);
  last_death_ns_ = world_.now();
  if (network_) network_->kill(r);
  for (int other = 0; other < setting_.ranks; other++) tell(other, r, false);
}

// Aborts as fsccl_comm_abort() does, from any thread.
void Job::abort(int r) {
  Rank& me = rank(r);
  if (me.dead || me.gone || me.engine->failed()) return;
  world_.note("rank {} aborts", r);
  aborted_ = r;
  aborted_ns_ = world_.now();
  Error error;
  error.code = FSCCL_ERR_ABORTED;
  error.rank = error.peer = r;
  error.text = "given up";
  me.engine->fail_all(error);
  wake(r);
}

void Job::tell(int r, int lost, bool left) {
  if (r == lost) return;
  // In shared memory a rank sees a signal before any news over the control tree.
  const int64_t soonest_ns = setting_.network ? 0 : setting_.latest_ns + 1;
  world_.after(world_.between(soonest_ns, kDetectionNs), [this, r, lost, left] {
    Rank& me = rank(r);
    if (me.dead || me.gone) return;
    if (me.asleep_until_ns <= world_.now()) return hear(me, lost, left), wake(r);
    world_.at(me.asleep_until_ns, [this, r, lost, left] {
      if (!rank(r).gone && !rank(r).dead) hear(rank(r), lost, left);
    });
  });
}

void Job::hear(Rank& me, int lost, bool left) {
  if (!me.lost.emplace(lost, left).second) return;
  me.engine->lost(lost, left);
  for (auto& [ends, pair] : me.pairs)
    if (pair.engine && (ends.first == lost || ends.second == lost))
      pair.engine->lost(ends.first == lost ? 0 : 1, left);
}

// ---- what must hold

Outcome Job::run() {
  plan_trouble();
  const auto running = [this] {
    return std::any_of(ranks_.begin(), ranks_.end(),
                       [](const Rank& one) { return !one.dead && !one.gone; });
  };
  while (!broken_ && running() && world_.now() < kEndNs && world_.step()) {
  }
  if (!broken_) judge();
  Outcome made;
  made.broken = broken_;
  made.history = world_.history();
  made.trace = world_.trace();
  made.trouble = setting_.trouble;
  made.operations = operations_;
  for (const Rank& one : ranks_) made.errors += one.error ? 1 : 0;
  made.setting = fmt::format("{} operations, {}", program_.size(), describe(setting_));
  return made;
}

void Job::judge() {
  for (int r = 0; r < setting_.ranks && !broken_; r++) {
    const Rank& me = rank(r);
    if (me.dead) continue;
    if (!me.over) return break_down(fmt::format("rank {} never ends", r));
    // In shared memory peers write the rank's buffers, until they know of the failure, too.
    const bool touched = std::any_of(me.calls.begin(), me.calls.end(),
                                     [](const auto& call) { return call->touched(); });
    if (setting_.network && touched)
      return break_down(
          fmt::format("buffers of rank {} were written to after their operation failed", r));
    if (me.error)
      judge_error(r);
    else if (setting_.trouble == Trouble::mismatch)
      break_down(fmt::format("rank {} ended well though ranks called differently", r));
  }
}

// Returns true if the error names a link on which a bit turned: the receiver and the sender.
bool Job::names_damage(const Error& error) const {
  const auto& damaged = network_ ? network_->damaged() : machine_.damaged;
  return std::any_of(damaged.begin(), damaged.end(), [&](const auto& link) {
    const auto says = [&](const std::string& words) {
      return error.text.find(words) != std::string::npos;
    };
    return says(fmt::format(" from rank {} over ", link.first)) &&
           says(link.second < 0 ? " got " : fmt::format("rank {} got ", link.second));
  });
}

// Returns true if the error names the call of the rank that called something else and another
// rank's call, or the first call that ranks which did not wait for each other may not have
// compared. The error must not give an impossible reason.
bool Job::names_the_calls(const Error& error) const {
  const auto says = [&](int r, OpCode op) {
    return error.text.find(fmt::format("rank {} calls {}", r, op_name(op))) != std::string::npos;
  };
  constexpr std::string_view kFrom = "differ in a call from operation ";
  if (const size_t from = error.text.find(kFrom); from != std::string::npos)
    return std::stoull(error.text.substr(from + kFrom.size())) <= mismatch_at_ + 1;
  bool another = false;
  for (int r = 0; r < setting_.ranks; r++)
    another |= r != mismatches_ && says(r, program_[mismatch_at_].code);
  return another && says(mismatches_, differs_) &&
         error.text.find("memory events") == std::string::npos;
}

void Job::judge_error(int r) {
  const Rank& me = rank(r);
  const Error& error = *me.error;
  const auto among = [&](std::initializer_list<int> ranks) {
    return std::find(ranks.begin(), ranks.end(), error.peer) != ranks.end();
  };
  bool right = false;
  switch (setting_.trouble) {
    case Trouble::none:
      break;
    case Trouble::death:
      right = error.code == FSCCL_ERR_PEER_DEAD &&
              std::find(dead_.begin(), dead_.end(), error.peer) != dead_.end();
      if (right && !paused_ && me.over_ns > last_death_ns_ + kDetectionNs + kReactionNs)
        return break_down(fmt::format("rank {} took {} ms to end", r,
                                      (me.over_ns - last_death_ns_) / kMillisecond));
      break;
    case Trouble::cut:
      right = (error.code == FSCCL_ERR_LINK || error.code == FSCCL_ERR_PEER_DEAD) &&
              among({cut_.first, cut_.second});
      break;
    case Trouble::mismatch:
      right = error.code == FSCCL_ERR_MISMATCH && names_the_calls(error);
      break;
    case Trouble::garbled:
      right = true;
      break;
    case Trouble::damaged:
      right =
          // Any error is right if headers have wrong bits, too.
          (error.code == FSCCL_ERR_PROTOCOL && names_damage(error)) || setting_.weather.garbled > 0;
      break;
    case Trouble::aborted:
      right = error.code == FSCCL_ERR_ABORTED && error.peer == aborted_;
      if (right && !paused_ && setting_.weather.loss == 0 && me.over_ns > aborted_ns_ + kReactionNs)
        return break_down(
            fmt::format("rank {} took {} ms to end", r, (me.over_ns - aborted_ns_) / kMillisecond));
      break;
    case Trouble::stopped:
      right = error.code == FSCCL_ERR_TIMEOUT &&
              me.over_ns >= stopped_ns_ + kTimeoutMs * kMillisecond - kBeforeNs;
      if (right && !me.asleep_until_ns &&
          me.over_ns > stopped_ns_ + kTimeoutMs * kMillisecond + kBeforeNs)
        return break_down(
            fmt::format("rank {} took {} ms to end", r, (me.over_ns - stopped_ns_) / kMillisecond));
      break;
  }
  if (!right)
    break_down(fmt::format("rank {} ended with error {} about rank {}: {}", r,
                           static_cast<int>(error.code), error.peer, error.text));
}

}  // namespace fsccl::sim
