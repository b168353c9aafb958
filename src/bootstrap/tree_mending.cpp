// Links in place of those that ended with a lost rank (tree.h). Each rank belongs below
// mended_parent(). It connects to that rank, and to the ranks that belong below it and have not
// come by themselves. So every lost rank is found out: the rank above looks for each rank that is
// not linked where it belongs, and if nobody listens at its address any more, it is lost. And every
// living rank except the first is linked to a rank of lower order. So all living ranks are in one
// tree again, and all learn what one of them knows.
//
// Connecting may block, so threads do it. They exist only while links are missing.
#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "base/config.h"
#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"
#include "bootstrap/tree.h"

namespace fsccl {

namespace {

// After a loss, ranks that belong below this rank have so long to come by themselves.
constexpr int64_t kOwnWayNs = 50'000'000;
// The first time-out of an attempt. A rank may be slow, so each time-out doubles it, up to
// kLongestAnswerMs.
constexpr int64_t kAnswerMs = 300;
constexpr int64_t kLongestAnswerMs = 2400;
constexpr int64_t kMendPauseNs = 20'000'000;
constexpr int64_t kNoThreadNs = 100'000'000;  // the pause until the system is asked for one again
constexpr int64_t kLongestPauseNs = 1'000'000'000;
constexpr size_t kMostAtOnce = 32;  // attempts at the same time
// A process that has closed more connections than this is none of the job, and the rank is lost.
constexpr int kClosedDoors = 250;

}  // namespace

bool TreeJob::linked(int32_t rank) const {
  return std::any_of(links_.begin(), links_.end(),
                     [&](const LinkPtr& link) { return link->rank == rank; });
}

std::vector<TreeJob::Wanted> TreeJob::wanted_links() const {
  std::vector<Wanted> wanted;
  std::vector<bool> lost(arrivals_.size());
  for (size_t order = 0; order < lost.size(); ++order)
    lost[order] = lost_.contains(arrivals_[order]);
  const auto want = [&](int32_t order, int64_t due_ns) {
    const int32_t rank = arrivals_[static_cast<size_t>(order)];
    if (!linked(rank)) wanted.push_back({rank, due_ns});
  };
  if (const int32_t parent = mended_parent(config_.order, lost); parent >= 0) want(parent, 0);
  for (int32_t order = config_.order + 1; order < config_.ranks; ++order)
    if (!lost[static_cast<size_t>(order)] && mended_parent(order, lost) == config_.order)
      want(order, last_loss_ns_ + kOwnWayNs);
  return wanted;
}

// Starts the mender if links are missing. Returns when to look again. Runs in the service thread,
// whose signals are blocked, so those of the new thread are blocked, too.
int64_t TreeJob::mend_if_due(int64_t now) {
  if (phase_ != Phase::kJoined || !reception_) return INT64_MAX;
  if (mend_due_ns_ > now) return mend_due_ns_;
  mend_due_ns_ = INT64_MAX;
  if (mending_ || wanted_links().empty()) return INT64_MAX;
  if (mender_.joinable()) mender_.join();             // the thread has nothing left to do
  mending_ = mender_.start([this] { mend(); }).ok();  // leave() waits for it
  if (!mending_) mend_due_ns_ = now + kNoThreadNs;
  return mend_due_ns_;
}

// The mender's work. Each attempt to connect has a thread of its own, because an attempt to reach a
// host that is lost takes long. The job's mutex is held, except while an attempt or run() waits.
class TreeJob::Mending {
 public:
  Mending(TreeJob& job, std::unique_lock<std::mutex>& lock) : job_(job), lock_(lock) {}
  ~Mending();
  void run();

 private:
  struct Attempt {  // the attempts to reach one rank
    Thread thread;
    bool under_way = false;
    int64_t next_ns = 0, answer_ms = kAnswerMs;
    int closed = 0;
  };
  int64_t begin_due(const std::vector<Wanted>& wanted, bool to_link);
  void connect(int32_t rank, bool to_link);
  void judge(int32_t rank, Attempt& attempt, Reached reached);
  std::vector<Wanted> silent_with_their_host() const;

  TreeJob& job_;
  std::unique_lock<std::mutex>& lock_;
  std::map<int32_t, Attempt> attempts_;
  size_t under_way_ = 0;
  std::set<uint64_t> silent_hosts_;  // hosts of which a rank could not be reached
};

TreeJob::Mending::~Mending() {
  if (under_way_ > 0 && lock_.owns_lock()) lock_.unlock();  // the attempts need it to end
  for (auto& [rank, attempt] : attempts_)
    if (attempt.thread.joinable()) attempt.thread.join();
  if (!lock_.owns_lock()) lock_.lock();
}

void TreeJob::Mending::run() {
  while (job_.phase_ == Phase::kJoined && !job_.expelled_) {
    const std::vector<Wanted> wanted = job_.wanted_links();
    if (wanted.empty() && under_way_ == 0) break;
    const int64_t next_ns =
        std::min(begin_due(wanted, true), begin_due(silent_with_their_host(), false));
    job_.changed_.wait_for(lock_, std::clamp<int64_t>(next_ns - now_ns(), 0, kLongestPauseNs));
  }
}

// Begins the attempts that are due. Returns when the next one is due.
int64_t TreeJob::Mending::begin_due(const std::vector<Wanted>& wanted, bool to_link) {
  int64_t next_ns = INT64_MAX;
  for (const Wanted& one : wanted) {
    Attempt& attempt = attempts_[one.rank];
    if (attempt.under_way || under_way_ >= kMostAtOnce) continue;
    if (const int64_t due_ns = std::max(one.due_ns, attempt.next_ns); due_ns > now_ns()) {
      next_ns = std::min(next_ns, due_ns);
      continue;
    }
    if (attempt.thread.joinable()) attempt.thread.join();  // the thread has nothing left to do
    const bool started =
        attempt.thread.start([this, rank = one.rank, to_link] { connect(rank, to_link); }).ok();
    attempt.under_way = true;
    under_way_++;
    if (started) continue;
    lock_.unlock();
    connect(one.rank, to_link);
    lock_.lock();
    return 0;  // much may have changed
  }
  return next_ns;
}

// Returns the ranks of the silent hosts that are neither lost nor linked. They are asked together,
// so that the ranks of a lost host are not found out each after the wait for the one before. Each
// of them is asked, because a rank that cannot be reached may be the only one of its host: it may
// be stopped, with as many connections at its door as its system allows.
std::vector<TreeJob::Wanted> TreeJob::Mending::silent_with_their_host() const {
  std::vector<Wanted> asked;
  for (const MemberRecord& member : job_.records_)
    if (silent_hosts_.contains(member.host) && !job_.lost_.contains(member.rank) &&
        !job_.linked(member.rank))
      asked.push_back({member.rank, 0});
  return asked;
}

// Connects to a rank. If the rank is not to be linked, this only asks whether its system answers.
void TreeJob::Mending::connect(int32_t rank, bool to_link) {
  std::unique_lock lock(job_.mutex_);
  Attempt& attempt = attempts_.at(rank);
  try {
    const MemberRecord member = job_.records_[static_cast<size_t>(rank)];
    const int64_t answer_ms = attempt.answer_ms;
    FramedSocket channel;
    lock.unlock();
    const Reached reached = job_.reach(member, answer_ms, to_link ? &channel : nullptr);
    lock.lock();
    judge(rank, attempt, reached);
    if (reached == Reached::yes && !to_link) silent_hosts_.erase(member.host);
    if (reached == Reached::yes && to_link && job_.phase_ == Phase::kJoined) {
      auto link = std::make_shared<Link>();
      link->rank = rank;
      link->channel = std::make_shared<FramedSocket>(std::move(channel));
      (void)job_.add_mended(link).ok();  // if this fails, the rank is still wanted
    }
  } catch (const std::bad_alloc&) {
    if (!lock.owns_lock()) lock.lock();
  }
  attempt.next_ns = now_ns() + kMendPauseNs;
  attempt.under_way = false;
  under_way_--;
  job_.changed_.notify_all();
}

void TreeJob::Mending::judge(int32_t rank, Attempt& attempt, Reached reached) {
  if (job_.phase_ != Phase::kJoined) return;
  if (reached == Reached::silent)
    attempt.answer_ms = std::min(2 * attempt.answer_ms, kLongestAnswerMs);
  if (reached == Reached::closed) attempt.closed++;
  if (reached == Reached::refused) job_.be_expelled(nullptr);
  if (reached == Reached::unreachable) silent_hosts_.insert(job_.member(rank).host);
  if (reached != Reached::nobody && reached != Reached::unreachable &&
      attempt.closed <= kClosedDoors)
    return;
  job_.lose_unreachable(rank, reached == Reached::unreachable);
  Reactor::instance().kick();  // losses are told from the service thread
}

// The thread of the mender. If memory is short, another thread makes the missing links a little
// later.
void TreeJob::mend() {
  std::unique_lock lock(mutex_);
  try {
    Mending(*this, lock).run();
  } catch (const std::bad_alloc&) {
    if (!lock.owns_lock()) lock.lock();
    mend_due_ns_ = now_ns() + kMendPauseNs;
    Reactor::instance().kick();
  }
  mending_ = false;
  changed_.notify_all();
}

// Returns the member's TCP address. A member that has reached the rendezvous on its own host has no
// address that ranks of other hosts can use. They reach it at the address of the rendezvous.
IpAddress TreeJob::ip_to(const MemberRecord& member) const {
  const bool with_rendezvous =
      !config_.self.via_unix && (member.via_unix || is_loopback(member.ip));
  return with_rendezvous ? config_.rendezvous : member.ip;
}

SocketAddress TreeJob::door_of(const MemberRecord& member) const {
  return by_unix(member) ? unix_address(listener_name(member.listener))
                         : tcp_address(ip_to(member), member.port, config_.link);
}

bool TreeJob::has_door(const MemberRecord& member) const {
  return by_unix(member) || member.port != 0;
}

// Only the rank's own system refuses. Any other error may be one of this system (no route, no port,
// no memory), and says nothing about the rank.
bool TreeJob::nobody_listens(int rank) const {
  const MemberRecord& member = records_[static_cast<size_t>(rank)];
  int reason = 0;
  return has_door(member) &&
         !connect_to(door_of(member), Deadline::in_ms(kAnswerMs), {}, &reason).ok() &&
         reason == ECONNREFUSED;
}

// Tries to reach a rank. With `channel`, it makes a link to the rank; without, it only asks the
// rank's system whether somebody listens. Returns
//   yes          the rank has been linked, or somebody listens
//   nobody       nobody listens
//   unreachable  the rank's system does not answer, or lets no further connection wait
//   closed       somebody listens and has closed the connection: the rank may not be ready yet
//   silent       the rank has not answered in time (it is stopped, or very busy), or this rank
//                cannot connect now
//   refused      the rank holds this rank for dead
TreeJob::Reached TreeJob::reach(const MemberRecord& member, int64_t answer_ms,
                                FramedSocket* channel) const {
  const bool near = by_unix(member);
  const int64_t host_lost_ms = config()->host_lost_ms;
  if (!has_door(member)) return Reached::silent;
  int reason = 0;
  Result<Fd> connected = connect_to(
      door_of(member), Deadline::in_ms(near || host_lost_ms == 0 ? answer_ms : host_lost_ms), {},
      &reason);
  if (!connected.ok()) {
    if (reason == ECONNREFUSED) return Reached::nobody;
    // The system says that the host does not answer, after it has asked for some seconds.
    const bool in_vain = connected.status().code() == FSCCL_ERR_TIMEOUT || reason == EHOSTUNREACH;
    return in_vain && !near && host_lost_ms != 0 ? Reached::unreachable : Reached::silent;
  }
  if (!channel) return Reached::yes;
  const Deadline deadline = Deadline::in_ms(answer_ms);
  Status versions;
  Result<FramedSocket> introduced =
      introduce_as(connected.take(), config_.credentials, Purpose::kMend, config_.job, config_.rank,
                   config_.ranks, deadline, &versions);
  Status status = introduced.ok()
                      ? introduced.value().expect(FrameType::kLinked, deadline).status().clone()
                      : introduced.take_status();
  if (status.ok()) *channel = introduced.take();
  return status.ok()                            ? Reached::yes
         : status.code() == FSCCL_ERR_PEER_DEAD ? Reached::refused
         : status.code() == FSCCL_ERR_TIMEOUT   ? Reached::silent
                                                : Reached::closed;
}

// Admits a rank that belongs below this rank now, or above it.
void TreeJob::admit_mended(Guest& guest) {
  if (phase_ != Phase::kJoined) return;  // it will try again
  auto link = std::make_shared<Link>();
  link->rank = guest.hello.rank;
  link->channel = guest.channel;
  // The other end is met only when it has said something: it waits for the answer for a limited
  // time, and may have given up before the answer comes.
  link->met = false;
  if (const auto lost = lost_.find(link->rank); lost != lost_.end()) {
    const Status why =
        fail(FSCCL_ERR_PEER_DEAD, "rank {} is held for dead by rank {}", link->rank, config_.rank);
    return send(*link, FrameType::kFailure, encode(to_failure(why)));
  }
  send(*link, FrameType::kLinked, {});
  (void)add_mended(link).ok();
}

// Adds a link, and tells the other end all votes and losses that this rank knows: the votes first,
// because a decision must arrive before the news that its maker has left (membership.h).
Status TreeJob::add_mended(LinkPtr link) {
  FSCCL_TRY(add_link(link));
  Undo undo([&] { link->channel->shutdown(); });  // a link on which some of it is missing must end
  begin_watch(link->rank);
  for (const auto& [meeting, membership] : memberships_)
    if (const std::vector<Vote> votes = membership.all(); !votes.empty())
      send(*link, FrameType::kVotes, encode_votes(votes));
  std::vector<LostRank> losses;
  for (const auto& [rank, left] : lost_) losses.push_back({rank, left, host_is_lost(rank)});
  if (!losses.empty()) send(*link, FrameType::kLoss, encode_losses(losses));
  undo.keep();
  changed_.notify_all();
  return success();
}

}  // namespace fsccl
