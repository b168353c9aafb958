// The mishaps of simulated members, and the invariants that must hold (members.h).
#include <algorithm>

#include "members.h"

namespace fsccl::sim {
namespace {

constexpr int64_t kEndNs = 600 * kSecond;  // by then all is over
// The time until all living ranks know the ranks that are gone with a lost host.
constexpr int64_t kHostFoundNs = 6 * kSecond;
// The time until all know that a silent rank is held for dead.
constexpr int64_t kSilenceToldNs = 1500 * kMillisecond;
constexpr uint64_t kMostEvents = 3'000'000;  // by then all has come to rest
// The time beyond its deadline in which a rank reports that it cannot join, and ends.
constexpr int64_t kLateMs = 2500;
// The time until a rank that has joined beats, and speaks for others.
constexpr int64_t kBegunNs = 20 * kMillisecond;
// The time after a pause by which reports about others, made during the pause, are withdrawn.
constexpr int64_t kSpeaksAfterNs = 2 * kSecond;

}  // namespace

void Members::break_down(std::string what) {
  if (broken_) return;
  world_.note("BROKEN: {}", what);
  broken_ = std::move(what);
}

bool Members::calm() const {
  const Mishap mishap = setting_.mishap;
  return mishap == Mishap::none || mishap == Mishap::pauses || mishap == Mishap::strangers ||
         mishap == Mishap::farewells;
}

bool Members::gone(int r) const {
  const Rank& one = ranks_[static_cast<size_t>(r)];
  return one.process->over() || one.leaving || !one.joined || silent(r);
}

void Members::kill_one(int64_t from_ns, int64_t to_ns) {
  const int r = static_cast<int>(world_.below(static_cast<uint64_t>(setting_.ranks)));
  const bool at_send = world_.chance(0.6);
  const uint64_t sends = 1 + world_.below(world_.chance(0.5) ? 10 : 60);
  world_.after(world_.between(from_ns, to_ns), [this, r, at_send, sends] {
    Process& process = *rank(r).process;
    if (process.over() || rank(r).leaving) return;
    if (at_send)
      process.kill_at_send(sends);
    else
      process.kill();
  });
}

// Plans the loss of a host. Some of its ranks may have died just before. When the host goes, other
// ranks are then trying to link to ranks of the host, and have no link yet that could show its end.
void Members::plan_loss_of(int host, int64_t at_ns) {
  for (Rank& one : ranks_)
    if (one.process->host == host && setting_.chosen % 2 == 0 && world_.chance(0.5))
      world_.after(std::max<int64_t>(0, at_ns - world_.between(0, 100 * kMillisecond)),
                   [&one] { one.process->kill(); });
  world_.after(at_ns, [this, host] {
    wires_->lose_host(host, setting_.hosts);
    std::vector<int> here;
    for (int r = 0; r < setting_.ranks; r++) {
      if (rank(r).process->host == host)
        rank(r).process->kill();
      else if (rank(r).joined)
        here.push_back(r);
    }
    world_.after(kHostFoundNs, [this, host, here] {
      for (const int r : here)
        for (int other = 0; other < setting_.ranks && !rank(r).leaving && !rank(r).process->over();
             other++)
          if (rank(other).process->host == host && !rank(r).lost.contains(other))
            return break_down(fmt::format(
                "rank {} does not know yet that rank {} is gone, with its host", r, other));
    });
  });
}

// Stops the chosen rank. All others must learn of it: also ranks that hear of it only over the
// tree, and also if the chosen rank is the root.
void Members::stop_chosen(int64_t ns) {
  std::vector<int> there;
  for (int r = 0; r < setting_.ranks; r++)
    if (r != setting_.chosen && rank(r).joined) there.push_back(r);
  rank(setting_.chosen).process->pause(ns, true);
  world_.after(setting_.times.dead_ns + kSilenceToldNs, [this, there] {
    for (const int r : there)
      if (!gone(r) && !rank(r).lost.contains(setting_.chosen))
        return break_down(
            fmt::format("rank {} does not know yet that rank {} is silent", r, setting_.chosen));
  });
}

void Members::plan_mishap() {
  const int64_t most_ns = setting_.start_ns + kSecond;
  const auto host = [&] {
    return static_cast<int>(world_.below(static_cast<uint64_t>(setting_.hosts)));
  };
  if (setting_.mishap == Mishap::early || setting_.mishap == Mishap::deaths)
    for (int i = 0; i < setting_.deaths; i++)
      setting_.mishap == Mishap::early ? kill_one(0, setting_.start_ns + 20 * kMillisecond)
                                       : kill_one(0, most_ns);
  if (setting_.mishap == Mishap::hosts) plan_loss_of(host(), world_.between(0, most_ns));
  const bool one_alone = world_.chance(0.3);  // all other ranks then run and see the pause
  for (int r = 0; setting_.mishap == Mishap::pauses && r < setting_.ranks; r++) {
    if (one_alone ? r != setting_.chosen : world_.chance(0.6)) continue;
    const bool stopped = world_.chance(0.5);
    const int64_t ns = world_.between(50 * kMillisecond, 8 * kSecond);
    Process& process = *rank(r).process;
    if (world_.chance(0.3))
      process.pause_at_send(1 + world_.below(20), ns, stopped);
    else
      world_.after(world_.between(0, most_ns),
                   [&process, ns, stopped] { process.pause(ns, stopped); });
  }
  // A stop of this length makes a rank count as dead. The rank must have joined and beaten before,
  // because no rank misses one that has never beaten.
  if (setting_.mishap == Mishap::silent)
    world_.after(setting_.start_ns + world_.between(kSecond, 3 * kSecond) / 10, [this] {
      const Rank& chosen = rank(setting_.chosen);
      if (chosen.joined && world_.now() - chosen.ended_ns > kBegunNs)
        stop_chosen(world_.between(4 * kSecond, 8 * kSecond));
    });
  for (int pause_ms = 0, r = 0; setting_.mishap == Mishap::farewells && r < setting_.ranks; r++) {
    // The next rank leaves at once, or just when the others begin to look for lost ranks, or when
    // they have finished looking.
    const int64_t way = world_.between(0, 99);
    pause_ms += static_cast<int>(r % 2 == 1 && way < 40 ? world_.between(0, 20)
                                 : way < 70             ? world_.between(950, 1150)
                                                        : 2500);
    leaves_after_.push_back(pause_ms);
  }
  for (size_t i = leaves_after_.size(); i > 1; i--)
    std::swap(leaves_after_[i - 1], leaves_after_[world_.below(i)]);
  // Ranks are paused while others die.
  for (int r = 0; setting_.mishap == Mishap::deaths && r < setting_.ranks; r++)
    if (setting_.weather.loss == 0 && world_.chance(0.1))
      world_.after(world_.between(0, most_ns),
                   [this, r, ns = world_.between(50 * kMillisecond, kSecond),
                    stopped = world_.chance(0.5)] { rank(r).process->pause(ns, stopped); });
  for (int i = 0; setting_.mishap == Mishap::cuts && i < setting_.hosts; i++)
    world_.after(world_.between(0, most_ns),
                 [this, one = host(), other = host(), for_good = world_.chance(0.3),
                  ns = world_.between(100 * kMillisecond, 30 * kSecond)] {
                   if (one != other)
                     wires_->cut(one, other, for_good ? INT64_MAX : world_.now() + ns);
                 });
}

MembersOutcome Members::run() {
  const auto running = [this] {
    return std::any_of(ranks_.begin(), ranks_.end(), [&](const Rank& one) {
      return !one.process->over() &&
             !(setting_.mishap == Mishap::missing && &one == &rank(setting_.chosen));
    });
  };
  uint64_t events = 0;
  while (!broken_ && !Process::fault && running() && world_.now() < kEndNs &&
         events++ < kMostEvents && world_.step()) {
  }
  if (!broken_ && Process::fault) break_down(*Process::fault);
  if (!broken_ && events >= kMostEvents) break_down("it does not come to rest");
  if (!broken_) judge();
  MembersOutcome made;
  made.broken = broken_;
  made.history = world_.history();
  made.trace = world_.trace();
  made.mishap = setting_.mishap;
  made.setting = describe(setting_);
  made.suspects = suspects_;
  made.agreed = static_cast<int>(answers_.size());
  for (const Rank& one : ranks_) {
    made.joined += one.joined ? 1 : 0;
    made.refused += one.error ? 1 : 0;
  }
  return made;
}

void Members::check_agreed(int r, uint64_t meeting, const Job::Agreed& agreed,
                           const std::vector<int>& members) {
  const auto failed = [&](int one) {
    return std::binary_search(agreed.failed.begin(), agreed.failed.end(), one);
  };
  Answer& answer = answers_[meeting];
  if (may_split() || silent(r)) return;  // a silent rank may not know yet that it counts as dead
  if (failed(r)) return break_down(fmt::format("rank {} agrees that it is gone", r));
  // A rank that has left or died since then may have told its answer to no living rank, or only to
  // one that is stopped. If no rank is dead, stopped or late, it has told all.
  const bool told = dead_.empty() && setting_.mishap != Mishap::pauses && !silent(setting_.chosen);
  const bool lives = answer.first >= 0 && (told || !gone(answer.first));
  if (!lives) answer = {agreed.failed, agreed.refusal.code, agreed.refusal.rank, answer.by, r};
  answer.by.insert(r);
  if (answer.failed != agreed.failed || answer.code != agreed.refusal.code ||
      answer.refusing != agreed.refusal.rank)
    return break_down(
        fmt::format("rank {} agrees to something else than rank {}", r, answer.first));
  for (const int one : members) {
    if (asked_.at(meeting).dead.contains(one) && !failed(one))
      return break_down(
          fmt::format("to rank {}, rank {} is left, which was dead before anybody asked", r, one));
    if (failed(one) && !gone(one))
      return break_down(fmt::format("to rank {}, rank {} is gone, which is there", r, one));
    if (failed(one) && answer.by.contains(one) && !gone(one))
      return break_down(fmt::format("rank {} agreed, and rank {} holds it for gone", one, r));
  }
}

void Members::judge() {
  for (int r = 0; r < setting_.ranks && !broken_; r++) {
    const Rank& me = rank(r);
    if (me.process->killed() || (setting_.mishap == Mishap::missing && r == setting_.chosen))
      continue;
    if (!me.over) return break_down(fmt::format("rank {} never ends", r));
    if (me.began) judge_joining(r);
    if (!broken_ && me.joined) judge_losses(r);
  }
}

void Members::judge_joining(int r) {
  const Rank& me = rank(r);
  const auto wrong = [&](const char* why) {
    break_down(fmt::format("rank {} {}: {}: error {} about rank {}: {}", r,
                           me.joined ? "has joined" : "has not joined", why,
                           me.error ? static_cast<int>(me.error->code) : 0,
                           me.error ? me.error->peer : -1, me.error ? me.error->text : ""));
  };
  if (me.joined) {
    for (const Rank& other : ranks_)
      if (other.joined && other.job != me.job) return wrong("others are in another job");
    if (setting_.mishap == Mishap::missing || setting_.mishap == Mishap::misfit)
      wrong("but not all have come");
    return;
  }
  if (!me.error) return;  // the rank was killed
  if (calm() || setting_.mishap == Mishap::differing || setting_.mishap == Mishap::deaths) {
    const bool blameless = dead_.empty();
    if (blameless) return wrong("all have come");
  }
  if (me.error->text.empty()) return wrong("no reason");
  if ((me.ended_ns - me.began_ns) / kMillisecond > setting_.join_ms + kLateMs)
    return wrong("too late");
  if (may_split()) return;
  const fsccl_status_t code = me.error->code;
  if (setting_.mishap == Mishap::missing && code != FSCCL_ERR_TIMEOUT)
    return wrong("a rank is missing");
  if (setting_.mishap == Mishap::misfit && code != FSCCL_ERR_MISMATCH &&
      code != FSCCL_ERR_INVALID_ARGUMENT && code != FSCCL_ERR_TIMEOUT &&
      code != FSCCL_ERR_PEER_DEAD)
    return wrong("a rank does not fit");
  if (code == FSCCL_ERR_PEER_DEAD && (me.error->peer < 0 || !gone(me.error->peer)))
    return wrong("that one lives");
}

// Breaks the job if rank r suspects rank `other` without a reason. If heartbeats arrive in time, a
// suspicion has a reason only if `other` is paused. It has none if `other` is not stopped but only
// gets no processor, and this can be seen: because all ranks share one host, or because another
// rank of its host sends beats for it (spoken_for()) and no other rank was paused lately.
void Members::judge_suspicion(int r, int other) {
  const bool narrow = setting_.weather.room <= 16384 &&
                      // A frame may wait long behind the data of an exchange.
                      setting_.weather.most_ns > 2 * kMillisecond;
  const bool late = narrow || setting_.weather.loss > 0;  // frames and goodbyes may come late
  if ((late && (!setting_.weather.datagrams || rank(other).leaving)) || may_split() ||
      setting_.mishap == Mishap::hosts || rank(other).process->over())
    return;
  const Process& process = *rank(other).process;
  if (!process.paused() || (!process.was_stopped() &&
                            (setting_.hosts == 1 || (all_run_but(other) && spoken_for(other)))))
    break_down(fmt::format("rank {} suspects rank {} without a reason", r, other));
}

// Returns true if all other ranks have run for so long that no rank still passes on a report from
// the time of its own pause.
bool Members::all_run_but(int r) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const Rank& one) {
    return &one == &as_known(r) || runs_since(one) > kSpeaksAfterNs;
  });
}

int64_t Members::runs_since(const Rank& one) const {
  return one.process->paused() ? world_.now() - one.process->paused_until_ns() : INT64_MAX;
}

// Returns true if a rank beside this one on its host has seen it beat and sees that it would run if
// it could, and has neighbours on other hosts that hear it.
bool Members::spoken_for(int r) const {
  std::vector<int> ring;
  for (int other = 0; other < setting_.ranks; other++)
    if (as_known(other).process->host == as_known(r).process->host) ring.push_back(other);
  const size_t at = static_cast<size_t>(std::find(ring.begin(), ring.end(), r) - ring.begin());
  const auto speaks = [&](int other) {
    const Rank& one = as_known(other);
    return other != r && one.joined && !one.leaving && !one.process->over() &&
           runs_since(one) > kSpeaksAfterNs && world_.now() - one.ended_ns > kBegunNs;
  };
  const bool has_beaten = as_known(r).process->paused_from_ns() - as_known(r).ended_ns > kBegunNs;
  const int next = ring[(at + 1) % ring.size()],
            before = ring[(at + ring.size() - 1) % ring.size()];
  // The rank beside it beats for it only to its neighbours in the first tree, not in a mended one.
  const bool mended = !dead_.empty();
  return setting_.weather.datagrams && has_beaten && !mended && (speaks(next) || speaks(before));
}

void Members::judge_losses(int r) {
  const Rank& me = rank(r);
  if (setting_.mishap == Mishap::differing && setting_.gathers > 0 && !me.gather_error)
    return break_down(fmt::format("rank {} gathered, though ranks gave differently", r));
  if (calm() && me.gather_error)
    return break_down(fmt::format("rank {} could not gather: {}", r, me.gather_error->text));
}

}  // namespace fsccl::sim
