// Heartbeats over a job's links (heartbeat.h has the rules). To the processes of its host a rank
// beats by a store into shared memory (beat_table.h), and to a neighbour on another host by a small
// frame. The frame lists the silent ranks. A frame goes over any link when there are silent ranks,
// or when the list has changed.
//
// A frame waits behind bytes of its connection that the network has lost. So with each beat, a
// datagram (wire/beat.h) goes to each neighbour on another host, too, if the network lets datagrams
// pass. The datagram says only that this rank lives, for which either message is enough. A datagram
// without a valid proof is dropped, without an answer and without keeping anything of it.
//
// A rank that gets no processor does not send. The ranks beside it on its host therefore send
// datagrams for it, too, to its first neighbours on other hosts (not to the neighbours that it was
// linked with after a loss), as long as their system says that the rank runs or could run, or that
// it sleeps and its last beat is less than two beats old.
//
// A host is lost when it has owed an acknowledgement for too long, because a host's system sends
// acknowledgements even for a process that is stopped. A neighbour gets no beat while its socket
// has not taken the bytes before.
#include <algorithm>
#include <deque>

#include "base/hash.h"
#include "base/reactor.h"
#include "bootstrap/beat_table.h"
#include "bootstrap/heartbeat.h"
#include "bootstrap/member_info.h"
#include "bootstrap/neighbourhood.h"
#include "bootstrap/tree.h"
#include "fsccl/insight.h"
#include "wire/beat.h"

namespace fsccl {

namespace {

// The most frames that a neighbour gets without an answer. The system of a stopped process keeps
// them, and has room for far more.
constexpr int kMostUnanswered = 600;
constexpr int64_t kFirstBeatNs = 1'000'000'000;  // begin_beats() waits no longer for the first one
// In so many looks in a row bytes must be owed, because bytes that were just sent are not owed yet.
constexpr int kOwingLooks = 3;
// The table must not overtake the last messages of a rank, above all its decided vote, which come
// before its goodbye (membership.h). So what the table says of leaving counts only after this time.
// If no goodbye has come by then, none will: the ranks on its way have left already.
constexpr int64_t kGoodbyesWayNs = 1'000'000'000;
// The limit keeps a flood of datagrams from occupying the service thread.
constexpr int kDatagramsAtOnce = 32;
constexpr uint64_t kBeats = 0x6265'6174'7300ull;  // for the table's tag; no communicator has it

}  // namespace

// All functions except the constructor and share() are called with the job's mutex held.
class TreeJob::Beats final : public Senses {
 public:
  Beats(TreeJob& job, const HeartbeatTimes& times, LifeHandler handler);
  Status share(Deadline deadline);
  int64_t beat();
  Status hear(const Link& link, ByteView payload);
  void greet(int32_t rank) {  // records that a rank which has just been linked is there
    if (is_far(rank)) answered(rank);
  }
  Status hear_datagrams();
  bool has_far() const { return where_.hosts() > 1; }
  bool take(std::pair<int, PeerLife>* change);
  void leave() {
    if (table_) table_->leave(where_.line_of(mine()));
  }
  // Returns the thread that beats for a rank of this host, or 0 if none is known or it has left.
  int32_t thread_of(int32_t rank) const {
    if (is_far(rank) || !table_ || table_->has_left(where_.line_of(rank))) return 0;
    return table_->thread(where_.line_of(rank));
  }
  // The news of the table about a rank of this host. long_ago: its goodbye does not come any more.
  enum class Leaving { no, just_now, long_ago };
  Leaving leaving(int32_t rank, int64_t now) {
    if (is_far(rank) || !table_ || !table_->has_left(where_.line_of(rank))) return Leaving::no;
    return now - left_since_.try_emplace(rank, now).first->second >= kGoodbyesWayNs
               ? Leaving::long_ago
               : Leaving::just_now;
  }
  const LifeHandler& handler() const { return handler_; }
  bool begun() { return due_ns_ != 0 || next_to(mine()).empty(); }
  Heart heart;

  std::vector<int32_t> next_to(int32_t rank) override;
  Beat last_beat(int32_t rank) override;
  char state(int32_t rank) override;
  bool host_silent(int32_t rank, int64_t ns) override;

 private:
  struct Far {  // a neighbour on another host
    uint64_t beats = 0;
    int64_t heard_ns = 0;
    int unanswered = 0;  // frames to it since its last frame
    int owing = 0;       // looks at which its system owed an answer, in a row
    SecretKey key;       // key of datagrams from that rank
    uint64_t count = 0;  // count of the last datagram
  };
  Far& far(int32_t rank);
  void heard(int32_t rank) {
    far(rank).beats++;
    far(rank).heard_ns = now_ns();
  }
  void answered(int32_t rank) {  // records a sign of life over the link
    heard(rank);
    far(rank).unanswered = far(rank).owing = 0;
  }
  bool runs(int32_t rank);
  void send_datagram_of(int32_t from, int32_t to, const IpAddress& ip);
  void send_datagrams();
  void take_datagram(ByteView datagram);
  const MemberRecord& record(int32_t rank) const {
    return job_.records_[static_cast<size_t>(rank)];
  }
  const Member& member(int32_t rank) const { return job_.members_[static_cast<size_t>(rank)]; }
  int32_t mine() const { return job_.config_.rank; }
  const Member& self() const { return member(mine()); }
  bool is_far(int32_t rank) const { return where_.far(rank, mine()); }
  const std::vector<int32_t>& mates() const { return where_.mates(mine()); }
  int64_t next_beat(int64_t now) const {
    return now - (now - phase_ns_) % times_.beat_ns + times_.beat_ns;
  }
  void send_beats(bool beats, int64_t now);
  void lose_host(int32_t rank);

  TreeJob& job_;
  const HeartbeatTimes times_;
  const LifeHandler handler_;
  const Neighbourhood where_;
  int64_t phase_ns_ = 0;  // differs between processes, so that they do not all wake at once
  std::unique_ptr<BeatTable> table_;
  int64_t due_ns_ = 0, look_ns_ = INT64_MAX;
  std::map<int32_t, Far> far_;
  // keys of datagrams that this rank sends, by the rank that beats and the receiver
  std::map<std::pair<int32_t, int32_t>, SecretKey> keys_;
  std::map<int32_t, int64_t> left_since_;        // by rank: when the table first said that it left
  std::map<int32_t, std::vector<Silent>> said_;  // by neighbour: the list that it was sent last
  std::deque<std::pair<int, PeerLife>> changes_;
};

TreeJob::Beats::Beats(TreeJob& job, const HeartbeatTimes& times, LifeHandler handler)
    : heart(times, job.config_.rank),
      job_(job),
      times_(times),
      handler_(std::move(handler)),
      where_(job.members_, job.arrivals_) {
  phase_ns_ = static_cast<int64_t>(mix_hash(0, static_cast<uint64_t>(self().pid)) %
                                   static_cast<uint64_t>(times.beat_ns));
}

// The first rank of the host makes the table, and the others fetch it. If the first rank is lost
// before that, there is no table, and the ranks of this host are not watched by it. This is no
// error here: the caller learns of the loss where it matters.
Status TreeJob::Beats::share(Deadline deadline) {
  const bool one_process = std::all_of(mates().begin(), mates().end(), [&](int32_t rank) {
    return same_process(member(rank), self());
  });
  if (one_process) return success();
  const uint64_t tag = mix_hash(job_.id(), kBeats);
  const bool makes = mates().front() == mine();
  Result<Fd> fd = makes ? BeatTable::create(job_.id(), mates().size())
                        : job_.fetch_fd(mates().front(), tag, deadline, {});
  if (!makes && !fd.ok() && fd.status().code() == FSCCL_ERR_PEER_DEAD) return success();
  if (!fd.ok()) return fd.take_status();
  FSCCL_ASSIGN(std::unique_ptr<BeatTable> table,
               BeatTable::map(fd.value(), job_.id(), mates().size()));
  if (makes) FSCCL_TRY(job_.publish_fd(tag, fd.value().get()));
  const std::lock_guard lock(job_.mutex_);
  table_ = std::move(table);
  due_ns_ = 0;  // beat at once: the other ranks of this host have heard nothing yet
  return success();
}

std::vector<int32_t> TreeJob::Beats::next_to(int32_t rank) {
  std::vector<int32_t> ranks;
  const bool own = rank == mine();
  const auto add = [&](int32_t other) {
    const bool visible = (own || !is_far(other)) && !same_process(member(other), self());
    if (visible && std::find(ranks.begin(), ranks.end(), other) == ranks.end())
      ranks.push_back(other);
  };
  for (const int32_t other : where_.in_tree(rank)) add(other);
  for (const LinkPtr& link : job_.links_)  // links that replace others, too (tree_mending.cpp)
    if (own && link->rank >= 0) add(link->rank);
  return ranks;
}

Senses::Beat TreeJob::Beats::last_beat(int32_t rank) {
  if (is_far(rank)) return {far(rank).beats, now_ns() - far(rank).heard_ns};
  if (!table_) return {};
  const size_t line = where_.line_of(rank);
  return {static_cast<uint64_t>(table_->last(line)), table_->age_ns(line, now_ns()),
          table_->has_left(line)};
}

char TreeJob::Beats::state(int32_t rank) {
  if (is_far(rank) || !table_) return 0;
  const int32_t thread = table_->thread(where_.line_of(rank));
  return state_of(member(rank).pid, member(rank).start_time, thread);
}

bool TreeJob::Beats::host_silent(int32_t rank, int64_t ns) {
  if (!is_far(rank)) return false;
  Far& other = far(rank);
  const bool owes = other.unanswered < kMostUnanswered &&
                    std::any_of(
                        job_.links_.begin(), job_.links_.end(),
                        [&](const LinkPtr& link) {
                          return link->rank == rank && owed_for_ns(link->channel->fd()) >= ns;
                        });
  other.owing = owes ? other.owing + 1 : 0;
  return other.owing >= kOwingLooks;
}

int64_t TreeJob::Beats::beat() {
  const int64_t now = now_ns();
  const bool due = now >= due_ns_;
  if (!due && now < look_ns_) return std::min(due_ns_, look_ns_) - now;
  if (due && next_to(mine()).empty()) return -1;  // all neighbours are this process
  if (due) {
    // begin_beats() waits for the first beat.
    if (std::exchange(due_ns_, next_beat(now)) == 0) job_.changed_.notify_all();
    if (table_) table_->beat(where_.line_of(mine()), now, thread_number());
  }
  const Heart::Findings findings = heart.look(now, *this);
  look_ns_ = findings.next_ns;
  for (const int32_t rank : findings.cut_off) lose_host(rank);
  for (const int32_t rank : findings.left)
    if (leaving(rank, now) == Leaving::long_ago) job_.lose({rank, true}, nullptr);
  for (const int32_t rank : findings.dead) job_.lose({rank, false}, nullptr);
  if (due) send_datagrams();
  if (due) job_.watch_ends();
  send_beats(due, now);
  return std::max<int64_t>(std::min(due_ns_, look_ns_) - now_ns(), 0);
}

void TreeJob::Beats::lose_host(int32_t rank) {
  for (const int32_t other : where_.mates(rank)) job_.lose({other, false, true}, nullptr);
}

Status TreeJob::Beats::hear(const Link& link, ByteView payload) {
  FSCCL_ASSIGN(const std::vector<Silent> silent, decode_silent(payload, job_.config_.ranks));
  const int64_t now = now_ns();
  if (is_far(link.rank)) answered(link.rank);
  heart.told(link.rank, silent, now);
  send_beats(false, now);
  return success();
}

TreeJob::Beats::Far& TreeJob::Beats::far(int32_t rank) {
  const auto [found, made] = far_.try_emplace(rank);
  if (made)
    found->second.key =
        beat_key(job_.config_.credentials.key, job_.id(), record(rank), record(mine()));
  return found->second;
}

// Returns true if the rank, which is on this host, beats or would beat if it got a processor.
bool TreeJob::Beats::runs(int32_t rank) {
  const size_t line = where_.line_of(rank);
  if (!table_ || table_->last(line) == 0 || table_->has_left(line)) return false;
  const char its_state = state(rank);
  const bool sleeps = its_state == 'S' || its_state == 'D' || its_state == 0;
  return its_state == 'R' || (sleeps && table_->age_ns(line, now_ns()) < 2 * times_.beat_ns);
}

// Sends a datagram that says that rank `from` lives. Its count is the time of the host, which grows
// whichever rank of the host sends. Errors are ignored, because any datagram may be lost.
void TreeJob::Beats::send_datagram_of(int32_t from, int32_t to, const IpAddress& ip) {
  if (record(to).beat_port == 0) return;
  const auto [key, made] = keys_.try_emplace({from, to});
  if (made)
    key->second = beat_key(job_.config_.credentials.key, job_.id(), record(from), record(to));
  const BeatDatagram datagram = seal_beat(key->second, from, static_cast<uint64_t>(now_ns()));
  const SocketAddress address = tcp_address(ip, record(to).beat_port, job_.config_.link);
  (void)send_datagram(job_.datagrams_.get(), address, datagram.data(), datagram.size());
}

void TreeJob::Beats::send_datagrams() {
  if (!job_.datagrams_.valid()) return;
  for (const LinkPtr& link : job_.links_) {
    if (link->rank < 0 || !is_far(link->rank)) continue;
    if (const SocketAddress peer = peer_address(link->channel->fd()); !peer.is_unix())
      send_datagram_of(mine(), link->rank, ip_of(peer));
  }
  for (const int32_t mate : where_.beside(mine())) {
    if (same_process(member(mate), self()) || job_.lost_.contains(mate) || !runs(mate)) continue;
    for (const int32_t rank : where_.in_tree(mate))
      if (is_far(rank) && !job_.lost_.contains(rank) && !job_.by_unix(record(rank)))
        send_datagram_of(mate, rank, job_.ip_to(record(rank)));
  }
}

Status TreeJob::Beats::hear_datagrams() {
  std::array<uint8_t, kBeatBytes> bytes;
  for (int i = 0; i < kDatagramsAtOnce; ++i) {
    FSCCL_ASSIGN(const ssize_t count,
                 receive_datagram(job_.datagrams_.get(), bytes.data(), bytes.size()));
    if (count < 0) break;
    if (count == static_cast<ssize_t>(bytes.size())) take_datagram(bytes);
  }
  return success();
}

void TreeJob::Beats::take_datagram(ByteView datagram) {
  const int32_t rank = claimed_rank(datagram);
  if (rank < 0 || rank >= job_.config_.ranks || !is_far(rank) || !job_.linked(rank)) return;
  Far& other = far(rank);
  const uint64_t count = open_beat(other.key, datagram, other.count);
  if (count == 0) return;
  other.count = count;
  heard(rank);
}

void TreeJob::Beats::send_beats(bool beats, int64_t now) {
  for (const LinkPtr& link : job_.links_) {
    if (link->rank < 0 || !link->channel->flushed()) continue;
    std::vector<Silent> news = heart.news_for(link->rank, now);
    std::vector<Silent>& said = said_[link->rank];
    const bool changed = !std::equal(news.begin(), news.end(), said.begin(), said.end(),
                                     [](const Silent& a, const Silent& b) {
                                       return a.rank == b.rank && a.stopped == b.stopped;
                                     });
    const bool beats_there =
        beats && is_far(link->rank) && far(link->rank).unanswered++ < kMostUnanswered;
    if (!changed && !beats_there && !(beats && !is_far(link->rank) && !news.empty())) continue;
    job_.send(*link, FrameType::kBeat, encode_silent(news));
    said = std::move(news);
  }
  for (const Heart::Change& change : heart.changes(now))
    changes_.emplace_back(change.rank, change.life);
}

bool TreeJob::Beats::take(std::pair<int, PeerLife>* change) {
  if (changes_.empty()) return false;
  *change = changes_.front();
  changes_.pop_front();
  return true;
}

// --- the job

Status TreeJob::begin_beats(const HeartbeatTimes& times, LifeHandler handler, Deadline deadline) {
  const bool one_process = std::all_of(members_.begin(), members_.end(), [&](const Member& one) {
    return same_process(one, members_.front());
  });
  if (times.beat_ns <= 0 || one_process) {
    const std::lock_guard lock(mutex_);
    datagrams_.reset();
    return success();
  }
  auto beats = std::make_shared<Beats>(*this, times, std::move(handler));
  {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
    for (const int32_t rank : early_beats_) beats->greet(rank);
    for (const auto& [rank, left] : lost_) beats->heart.lost(rank, false, now_ns());
    beats_ = beats;
    if (!beats->has_far()) datagrams_.reset();
    if (datagrams_.valid() && !watch_datagrams().ok()) datagrams_.reset();
  }
  Reactor::instance().kick();
  // Other hosts hear this rank's beats from here on, because it may wait in share() for a rank that
  // is late.
  FSCCL_TRY(beats->share(deadline));
  Reactor::instance().kick();
  // A rank that has never beaten is not missed, so this rank's first one is waited for a while.
  std::unique_lock lock(mutex_);
  wait_until([&] { return beats->begun() || phase_ == Phase::kLeft; },
             Deadline::at(now_ns() + deadline.left_ns(kFirstBeatNs)), kNothingBreaks,
             UntilNotified{lock, changed_});
  return success();
}

PeerLife TreeJob::life(int rank) const {
  const std::lock_guard lock(mutex_);
  PeerLife life = beats_ ? beats_->heart.life(rank, now_ns()) : PeerLife{};
  if (const auto lost = lost_.find(rank); lost != lost_.end())
    life.state = lost->second ? FSCCL_PEER_LEFT : FSCCL_PEER_DEAD;
  return life;
}

int64_t TreeJob::beat() {
  const std::lock_guard lock(mutex_);
  return beats_ && phase_ != Phase::kLeft ? beats_->beat() : -1;
}

Status TreeJob::hear_beat(const Link& link, ByteView payload) {
  if (link.rank < 0) return bad_payload("Beat");
  if (beats_) return beats_->hear(link, payload);
  early_beats_.insert(link.rank);
  return success();
}

Status TreeJob::watch_datagrams() {
  return Reactor::instance().watch(datagrams_.get(), [weak = weak_from_this()] {
    if (const auto job = weak.lock()) job->on_datagrams();
  });
}

// If the system gives no datagrams any more, beats come in frames alone.
void TreeJob::on_datagrams() {
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kLeft || beats_->hear_datagrams().ok()) return;
  Reactor::instance().unwatch(datagrams_.get());
}

void TreeJob::begin_watch(int rank) {
  if (beats_) beats_->greet(rank);
}

void TreeJob::end_watch(const LostRank& lost) {
  if (beats_) beats_->heart.lost(lost.rank, lost.host_lost, now_ns());
}

// Returns true if the rank was lost because its host does not answer.
bool TreeJob::host_is_lost(int rank) const {
  return beats_ && beats_->heart.life(rank, now_ns()).host_lost;
}

// Reports a rank that cannot be reached any more as lost, unless the table says that it has left
// just now: then its goodbye is still awaited.
void TreeJob::lose_unreachable(int rank, bool host_lost) {
  const Beats::Leaving leaving = beats_ ? beats_->leaving(rank, now_ns()) : Beats::Leaving::no;
  if (leaving != Beats::Leaving::just_now)
    lose({rank, leaving == Beats::Leaving::long_ago, host_lost}, nullptr);
}

// Says in the table that this rank leaves. Ranks of this host that its goodbye cannot reach,
// because the ranks between have left before, see it there after a while.
void TreeJob::end_beats() {
  if (beats_) beats_->leave();
}

int32_t TreeJob::beating_thread(int rank) const { return beats_ ? beats_->thread_of(rank) : 0; }

void TreeJob::deliver_lives() {
  for (;;) {
    std::pair<int, PeerLife> change;
    {
      const std::lock_guard lock(mutex_);
      if (!beats_ || phase_ == Phase::kLeft || !beats_->take(&change)) return;
      telling_ = true;
    }
    tell([&] { beats_->handler()(change.first, change.second); });
  }
}

}  // namespace fsccl
