// Heartbeats over a job's links (heartbeat.h has the rules). To the processes of its host a rank beats by a store into memory that
// they share (beat_table.h), to a neighbour on another host by a small frame. That carries who is silent, as does one on any link
// when there is somebody, or this has changed.
//
// A host is lost when it owes an answer: what was sent is not acknowledged, which the system of a host does also for a process that
// is stopped. Nothing more is sent to a neighbour that has not taken what was sent before.
#include <algorithm>
#include <deque>

#include "base/hash.h"
#include "base/reactor.h"
#include "bootstrap/beat_table.h"
#include "bootstrap/heartbeat.h"
#include "bootstrap/member_info.h"
#include "bootstrap/tree.h"

namespace fsccl {

namespace {

constexpr int kMostUnanswered = 600;             // beats to a stopped process, which its system keeps: far less than has room there
constexpr int64_t kFirstBeatNs = 1'000'000'000;  // goes on without it then
constexpr int kOwingLooks = 3;                   // what was sent just now is not owed yet
// The table must not overtake what a rank has said before it left, a census's answer above all (census.h); its goodbye comes behind
// that. So what stands there counts where no goodbye came, because those between had left before.
constexpr int64_t kGoodbyesWayNs = 1'000'000'000;
constexpr uint64_t kBeats = 0x6265'6174'7300ull;  // no communicator's number

bool same_process(const Member& a, const Member& b) { return a.host == b.host && a.pid == b.pid && a.start_time == b.start_time; }

}  // namespace

std::string describe(const PeerLife& life) {
  if (life.host_lost) return "its host does not answer (FSCCL_HOST_LOST_MS)";
  return fmt::format("silent for {} ms{}", life.silent_ms, life.stopped ? ", its process is stopped" : "");
}

// With the job's mutex held, but for the constructor and share().
class TreeJob::Beats final : public Senses {
 public:
  Beats(TreeJob& job, const HeartbeatTimes& times, LifeHandler handler);
  Status share(Deadline deadline);
  int64_t beat();
  Status hear(const Link& link, ByteView payload);
  void greet(int32_t rank) {  // who has just been linked is there
    if (is_far(rank)) far_[rank] = {1, now_ns()};
  }
  bool take(std::pair<int, PeerLife>* change);
  void leave() {
    if (table_) table_->leave(static_cast<size_t>(lines_[static_cast<size_t>(job_.place_.rank)]));
  }
  const LifeHandler& handler() const { return handler_; }
  bool begun() { return due_ns_ != 0 || next_to(job_.place_.rank).empty(); }
  Heart heart;

  std::vector<int32_t> next_to(int32_t rank) override;
  Beat last_beat(int32_t rank) override;
  char state(int32_t rank) override;
  bool host_silent(int32_t rank, int64_t ns) override;

 private:
  struct Far {  // a neighbour on another host
    uint64_t beats = 0;
    int64_t heard_ns = 0;
    int unanswered = 0;  // beats since then
    int owing = 0;       // looks at which its system owed an answer, in a row
  };
  const Member& member(int32_t rank) const { return job_.members_[static_cast<size_t>(rank)]; }
  const Member& self() const { return member(job_.place_.rank); }
  bool is_far(int32_t rank) const { return member(rank).host != self().host; }
  int64_t next_beat(int64_t now) const { return now - (now - phase_ns_) % times_.beat_ns + times_.beat_ns; }
  void spread(bool beats, int64_t now);
  void lose_host(int32_t rank, int64_t now);

  TreeJob& job_;
  const HeartbeatTimes times_;
  const LifeHandler handler_;
  int64_t phase_ns_ = 0;         // processes do not all wake at once, but the ranks of one do
  std::vector<int32_t> orders_;  // of arrival, by rank
  std::vector<int32_t> here_;    // ranks of this host
  std::vector<int32_t> lines_;   // by rank: place in here_, -1
  std::unique_ptr<BeatTable> table_;
  int64_t due_ns_ = 0, look_ns_ = INT64_MAX;
  std::map<int32_t, Far> far_;
  std::map<int32_t, int64_t> left_since_;        // by rank: when the table first said so
  std::map<int32_t, std::vector<Silent>> said_;  // by neighbour
  std::deque<std::pair<int, PeerLife>> changes_;
};

TreeJob::Beats::Beats(TreeJob& job, const HeartbeatTimes& times, LifeHandler handler)
    : heart(times, job.place_.rank),
      job_(job),
      times_(times),
      handler_(std::move(handler)),
      orders_(job.members_.size()),
      lines_(job.members_.size(), -1) {
  phase_ns_ = static_cast<int64_t>(mix_hash(0, static_cast<uint64_t>(self().pid)) % static_cast<uint64_t>(times.beat_ns));
  for (size_t order = 0; order < job.arrivals_.size(); ++order)
    orders_[static_cast<size_t>(job.arrivals_[order])] = static_cast<int32_t>(order);
  for (int32_t rank = 0; rank < job.place_.ranks; ++rank) {
    if (is_far(rank)) continue;
    lines_[static_cast<size_t>(rank)] = static_cast<int32_t>(here_.size());
    here_.push_back(rank);
  }
}

// The first rank of the host makes the table. If it is gone by then, those of the host are not watched: the job has lost it, and
// whoever called learns that where it matters to him.
Status TreeJob::Beats::share(Deadline deadline) {
  const bool one_process =
      std::all_of(here_.begin(), here_.end(), [&](int32_t rank) { return same_process(member(rank), self()); });
  if (one_process) return success();
  const uint64_t tag = mix_hash(job_.id(), kBeats);
  const bool makes = here_.front() == job_.place_.rank;
  Result<Fd> fd = makes ? BeatTable::create(job_.id(), here_.size()) : job_.fetch_fd(here_.front(), tag, deadline);
  if (!makes && !fd.ok() && fd.status().code() == FSCCL_ERR_PEER_DEAD) return success();
  if (!fd.ok()) return fd.take_status();
  FSCCL_ASSIGN(table_, BeatTable::map(fd.value(), job_.id(), here_.size()));
  return makes ? job_.publish_fd(tag, fd.value().get()) : success();
}

std::vector<int32_t> TreeJob::Beats::next_to(int32_t rank) {
  std::vector<int32_t> ranks;
  const bool mine = rank == job_.place_.rank;
  const auto add = [&](int32_t other) {
    const bool visible = (mine || !is_far(other)) && !same_process(member(other), self());
    if (visible && std::find(ranks.begin(), ranks.end(), other) == ranks.end()) ranks.push_back(other);
  };
  const auto add_order = [&](int64_t order) {
    if (order >= 0 && order < job_.place_.ranks) add(job_.arrivals_[static_cast<size_t>(order)]);
  };
  const int64_t order = orders_[static_cast<size_t>(rank)];
  if (order > 0) add_order(parent_order(static_cast<int32_t>(order)));
  for (int64_t child = order * kFanOut + 1; child <= order * kFanOut + kFanOut; ++child) add_order(child);
  for (const LinkPtr& link : job_.links_)  // also those in the place of others (tree_mending.cpp)
    if (mine && link->rank >= 0) add(link->rank);
  return ranks;
}

Senses::Beat TreeJob::Beats::last_beat(int32_t rank) {
  if (is_far(rank)) {
    const Far& far = far_[rank];
    return {far.beats, now_ns() - far.heard_ns};
  }
  if (!table_) return {};
  const auto line = static_cast<size_t>(lines_[static_cast<size_t>(rank)]);
  return {static_cast<uint64_t>(table_->last(line)), table_->age_ns(line, now_ns()), table_->has_left(line)};
}

char TreeJob::Beats::state(int32_t rank) {
  if (is_far(rank) || !table_) return 0;
  const int32_t thread = table_->thread(static_cast<size_t>(lines_[static_cast<size_t>(rank)]));
  return state_of(member(rank).pid, member(rank).start_time, thread);
}

bool TreeJob::Beats::host_silent(int32_t rank, int64_t ns) {
  if (!is_far(rank)) return false;
  Far& far = far_[rank];
  const bool owes = far.unanswered < kMostUnanswered &&
                    std::any_of(job_.links_.begin(), job_.links_.end(),
                                [&](const LinkPtr& link) { return link->rank == rank && owed_for_ns(link->channel->fd()) >= ns; });
  far.owing = owes ? far.owing + 1 : 0;
  return far.owing >= kOwingLooks;
}

int64_t TreeJob::Beats::beat() {
  const int64_t now = now_ns();
  const bool due = now >= due_ns_;
  if (!due && now < look_ns_) return std::min(due_ns_, look_ns_) - now;
  if (due && next_to(job_.place_.rank).empty()) return -1;  // all neighbours are this process
  if (due) {
    if (std::exchange(due_ns_, next_beat(now)) == 0) job_.changed_.notify_all();  // begin_beats() waits for the first
    if (table_) table_->beat(static_cast<size_t>(lines_[static_cast<size_t>(job_.place_.rank)]), now, thread_number());
  }
  const Heart::Findings findings = heart.look(now, *this);
  look_ns_ = findings.next_ns;
  for (const int32_t rank : findings.cut_off) lose_host(rank, now);
  for (const int32_t rank : findings.left)
    if (now - left_since_.try_emplace(rank, now).first->second >= kGoodbyesWayNs) job_.lose({rank, true}, nullptr);
  for (const int32_t rank : findings.dead) job_.lose({rank, false}, nullptr);
  spread(due, now);
  return std::max<int64_t>(std::min(due_ns_, look_ns_) - now_ns(), 0);
}

void TreeJob::Beats::lose_host(int32_t rank, int64_t now) {
  for (int32_t other = 0; other < job_.place_.ranks; ++other) {
    if (member(other).host != member(rank).host) continue;
    heart.lost(other, true, now);
    job_.lose({other, false}, nullptr);
  }
}

Status TreeJob::Beats::hear(const Link& link, ByteView payload) {
  FSCCL_ASSIGN(const std::vector<Silent> silent, decode_silent(payload, job_.place_.ranks));
  const int64_t now = now_ns();
  if (is_far(link.rank)) {
    Far& far = far_[link.rank];
    far.beats++;
    far.heard_ns = now;
    far.unanswered = far.owing = 0;
  }
  heart.told(link.rank, silent, now);
  spread(false, now);
  return success();
}

void TreeJob::Beats::spread(bool beats, int64_t now) {
  for (const LinkPtr& link : job_.links_) {
    if (link->rank < 0 || !link->channel->flushed()) continue;
    std::vector<Silent> news = heart.news_for(link->rank, now);
    std::vector<Silent>& said = said_[link->rank];
    const bool changed = !std::equal(news.begin(), news.end(), said.begin(), said.end(),
                                     [](const Silent& a, const Silent& b) { return a.rank == b.rank && a.stopped == b.stopped; });
    const bool beats_there = beats && is_far(link->rank) && far_[link->rank].unanswered++ < kMostUnanswered;
    if (!changed && !beats_there && !(beats && !is_far(link->rank) && !news.empty())) continue;
    job_.send(*link, FrameType::kBeat, encode_silent(news));
    said = std::move(news);
  }
  for (const Heart::Change& change : heart.changes(now)) changes_.emplace_back(change.rank, change.life);
}

bool TreeJob::Beats::take(std::pair<int, PeerLife>* change) {
  if (changes_.empty()) return false;
  *change = changes_.front();
  changes_.pop_front();
  return true;
}

// --- the job

Status TreeJob::begin_beats(const HeartbeatTimes& times, LifeHandler handler, Deadline deadline) {
  const bool one_process =
      std::all_of(members_.begin(), members_.end(), [&](const Member& one) { return same_process(one, members_.front()); });
  if (times.beat_ns <= 0 || one_process) return success();
  auto beats = std::make_shared<Beats>(*this, times, std::move(handler));
  FSCCL_TRY(beats->share(deadline));
  std::unique_lock lock(mutex_);
  if (phase_ == Phase::kLeft) return fail(FSCCL_ERR_ABORTED, "this rank has left the job");
  for (const int32_t rank : early_beats_) beats->greet(rank);
  for (const auto& [rank, left] : lost_) beats->heart.lost(rank, false, now_ns());
  beats_ = beats;
  Reactor::instance().kick();
  // Who has never beaten is not missed: nobody is in the job without having done so once.
  changed_.wait_for(lock, deadline.left_ns(kFirstBeatNs), [&] { return beats->begun() || phase_ == Phase::kLeft; });
  return success();
}

PeerLife TreeJob::life(int rank) const {
  const std::lock_guard lock(mutex_);
  PeerLife life = beats_ ? beats_->heart.life(rank, now_ns()) : PeerLife{};
  if (const auto lost = lost_.find(rank); lost != lost_.end()) life.state = lost->second ? FSCCL_PEER_LEFT : FSCCL_PEER_DEAD;
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

void TreeJob::begin_watch(int rank) {
  if (beats_) beats_->greet(rank);
}

void TreeJob::end_watch(int rank) {
  if (beats_) beats_->heart.lost(rank, false, now_ns());
}

// Whoever cannot be told, because those between have left before, sees it after a while.
void TreeJob::end_beats() {
  if (beats_) beats_->leave();
}

void TreeJob::deliver_lives() {
  for (;;) {
    std::pair<int, PeerLife> change;
    LifeHandler handler;
    {
      const std::lock_guard lock(mutex_);
      if (!beats_ || phase_ == Phase::kLeft || !beats_->take(&change)) return;
      handler = beats_->handler();
    }
    handler(change.first, change.second);
  }
}

}  // namespace fsccl
