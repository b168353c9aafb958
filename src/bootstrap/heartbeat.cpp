#include "bootstrap/heartbeat.h"

#include <algorithm>
#include <set>
#include <utility>

#include "fsccl/insight.h"

namespace fsccl {

std::string describe(const PeerLife& life) {
  if (life.host_lost) return "its host does not answer (FSCCL_HOST_LOST_MS)";
  return fmt::format("silent for {} ms{}", life.silent_ms,
                     life.stopped ? ", its process is stopped" : "");
}

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr uint8_t kMostHops = 32;  // more than twice the longest path in a tree of kMaxRanks ranks

uint32_t as_ms(int64_t ns) {
  return static_cast<uint32_t>(std::clamp<int64_t>((ns + kMs / 2) / kMs, 0, UINT32_MAX));
}

}  // namespace

HeartbeatTimes heartbeat_times(const Config& settings) {
  HeartbeatTimes times;
  times.beat_ns = settings.heartbeat_ms * kMs;
  times.suspect_ns = std::max(settings.suspect_ms, 2 * settings.heartbeat_ms) * kMs;
  if (settings.dead_ms) times.dead_ns = std::max(settings.dead_ms * kMs, times.suspect_ns);
  if (settings.host_lost_ms)
    times.host_lost_ns = std::max(settings.host_lost_ms * kMs, 2 * times.beat_ns);
  return times;
}

int64_t WakingClock::advance(int64_t now_ns) {
  if (last_ns_ != INT64_MIN) waking_ns_ += std::clamp<int64_t>(now_ns - last_ns_, 0, most_ns_);
  last_ns_ = now_ns;
  return waking_ns_;
}

void Pulse::look(uint64_t mark, int64_t age_ns, int64_t waking_ns) {
  const int64_t most_ns = mark_ == 0 ? 0 : waking_ns - looked_ns_;
  looked_ns_ = waking_ns;
  if (mark == mark_) return;
  mark_ = mark;
  heard_ns_ = waking_ns - std::clamp<int64_t>(age_ns, 0, most_ns);
}

// Returns true if the rank is silent.
bool Heart::watch(int32_t rank, int64_t now_ns, int64_t waking_ns, Senses& senses,
                  Findings& findings) {
  Watched& watched = watched_[rank];
  Pulse& pulse = watched.pulse;
  const Senses::Beat beat = senses.last_beat(rank);
  if (beat.left) {
    findings.left.push_back(rank);
    seen_.erase(rank);
    return false;
  }
  const bool first = !pulse.heard() && beat.mark != 0;
  pulse.look(beat.mark, beat.age_ns, waking_ns);
  if (first) watched.seen = senses.state(rank) != 'X';
  int64_t silent_ns = pulse.silent_ns(waking_ns);
  if (times_.host_lost_ns && silent_ns >= times_.host_lost_ns &&
      senses.host_silent(rank, times_.host_lost_ns))
    findings.cut_off.push_back(rank);
  const char state = silent_ns < times_.suspect_ns ? 0 : senses.state(rank);
  if (state == 'R') {
    silent_ns = times_.suspect_ns - times_.beat_ns;
    pulse.excuse(silent_ns, waking_ns);
  }
  const bool stopped = state == 'T' || state == 't',
             ended = state == 'Z' || (state == 'X' && watched.seen);
  const bool sleeps = state != 0 && state != 'X' && !stopped && !ended;
  const int64_t limit_ns = sleeps ? 2 * times_.suspect_ns : times_.suspect_ns;
  for (const int64_t next_ns : {times_.suspect_ns, limit_ns, times_.dead_ns, times_.host_lost_ns})
    if (next_ns > silent_ns)
      findings.next_ns = std::min(findings.next_ns, now_ns + next_ns - silent_ns);
  if (silent_ns < limit_ns) {
    seen_.erase(rank);
    return false;
  }
  Silence& silence = seen_.try_emplace(rank, Silence{now_ns - silent_ns, false, 0}).first->second;
  silence.stopped = stopped;
  if (ended || (times_.dead_ns && silent_ns >= times_.dead_ns)) findings.dead.push_back(rank);
  return true;
}

Heart::Findings Heart::look(int64_t now_ns, Senses& senses) {
  Findings findings;
  const int64_t waking_ns = clock_.advance(now_ns);
  std::set<int32_t> met{rank_};
  // The ranks to look at, each with whether a silent rank lies between. Such a silent rank reports
  // nothing, so the ranks behind it are looked at, too.
  std::vector<std::pair<int32_t, bool>> ranks{{rank_, false}};
  for (size_t i = 0; i < ranks.size(); i++) {
    const auto [rank, cut_off] = ranks[i];
    // This rank itself and lost ranks are not watched, but the ranks next to them are: where a rank
    // is lost, the tree is mended.
    const bool through = rank == rank_ || lost_.contains(rank);
    const bool silent = !through && watch(rank, now_ns, waking_ns, senses, findings);
    if (!through && !silent && !cut_off) continue;
    for (const int32_t next : senses.next_to(rank))
      if (met.insert(next).second) ranks.emplace_back(next, cut_off || silent);
  }
  const auto unwatched = [&](const auto& one) {
    return !met.contains(one.first) || lost_.contains(one.first);
  };
  std::erase_if(watched_, unwatched);
  std::erase_if(seen_, unwatched);
  return findings;
}

void Heart::told(int32_t neighbour, const std::vector<Silent>& silent, int64_t now_ns) {
  Silences& silences = told_[neighbour];
  silences.clear();
  for (const Silent& one : silent)
    if (one.rank != rank_)
      silences[one.rank] = {now_ns - one.silent_ms * kMs, one.stopped, one.hops};
}

void Heart::lost(int32_t rank, bool with_host, int64_t now_ns) {
  if (lost_.contains(rank)) return;
  PeerLife last = life(rank, now_ns);
  last.host_lost = with_host;
  lost_.emplace(rank, last);
  seen_.erase(rank);
  watched_.erase(rank);
  told_.erase(rank);
}

// Returns the silences of all living ranks. If several neighbours report a rank, the longest
// silence and the nearest reporter count.
Heart::Silences Heart::known(int32_t but_from) const {
  Silences all;
  const auto add = [&](const Silences& some) {
    for (const auto& [rank, silence] : some) {
      if (lost_.contains(rank) || rank == but_from) continue;
      Silence& kept = all.try_emplace(rank, silence).first->second;
      kept.since_ns = std::min(kept.since_ns, silence.since_ns);
      kept.stopped |= silence.stopped;
      kept.hops = std::min(kept.hops, silence.hops);
    }
  };
  add(seen_);
  for (const auto& [neighbour, silences] : told_)
    if (neighbour != but_from) add(silences);
  return all;
}

std::vector<Silent> Heart::news_for(int32_t neighbour, int64_t now_ns) const {
  std::vector<Silent> news;
  for (const auto& [rank, silence] : known(neighbour))
    if (silence.hops < kMostHops)
      news.push_back({rank, as_ms(now_ns - silence.since_ns), silence.stopped,
                      static_cast<uint8_t>(silence.hops + 1)});
  return news;
}

PeerLife Heart::life(int32_t rank, int64_t now_ns) const {
  if (const auto lost = lost_.find(rank); lost != lost_.end()) return lost->second;
  const Silences silent = known(-1);
  const auto found = silent.find(rank);
  if (found == silent.end()) return {};
  return {FSCCL_PEER_SUSPECT, as_ms(now_ns - found->second.since_ns), found->second.stopped, false};
}

std::vector<Heart::Change> Heart::changes(int64_t now_ns) {
  std::vector<Change> changes;
  const Silences now = known(-1);
  for (const auto& [rank, silence] : now)
    if (!reported_.contains(rank)) changes.push_back({rank, life(rank, now_ns)});
  for (const auto& [rank, silence] : reported_)
    if (!now.contains(rank) && !lost_.contains(rank))
      changes.push_back({rank, {FSCCL_PEER_ALIVE, as_ms(now_ns - silence.since_ns), false, false}});
  reported_ = now;
  return changes;
}

}  // namespace fsccl
