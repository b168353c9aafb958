#include "bootstrap/tree.h"

#include <algorithm>
#include <utility>

#include "base/config.h"
#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"
#include "bootstrap/member_info.h"
#include "bootstrap/neighbourhood.h"
#include "bootstrap/rendezvous_server.h"

namespace fsccl {
namespace {

// A rank waits up to so long beyond its deadline for the rendezvous to say why the job fails.
constexpr int64_t kRendezvousWordNs = 300'000'000;
// The time between two looks whether the ranks of this host are still there.
constexpr int64_t kLookNs = 200'000'000;
// The last words of a rank that has ended arrive in this time.
constexpr int64_t kNewsNs = 100'000'000;

}  // namespace

TreeJob::TreeJob(TreeConfig config)
    : config_(std::move(config)),
      steps_(config_.order, config_.ranks),
      members_(static_cast<size_t>(config_.ranks)),
      records_(members_.size()),
      no_memory_(fail(FSCCL_ERR_OUT_OF_MEMORY,
                      "rank {} got no memory from the system for the library's own data; free "
                      "some, or raise the limit of the "
                      "container",
                      config_.rank)
                     .with_peer(config_.rank, config_.rank)) {}

Result<std::shared_ptr<TreeJob>> TreeJob::open(TreeConfig config, Doors doors) {
  std::shared_ptr<TreeJob> self(new TreeJob(std::move(config)));
  const std::weak_ptr<TreeJob> weak = self;
  if (doors.listeners.empty()) {  // a single rank: nobody to speak to
    FSCCL_TRY(self->take_members(encode_members({self->config_.self})));
    self->phase_ = Phase::kJoined;
    return self;
  }
  FSCCL_ASSIGN(self->reception_,
               Reception::open(self->config_.credentials, self->config_.job, self->config_.rank,
                               std::move(doors.listeners), [weak](Guest guest) {
                                 if (const auto job = weak.lock()) job->admit(std::move(guest));
                               }));
  self->datagrams_ = std::move(doors.beats);
  self->hook_ = Reactor::instance().add_hook([weak]() -> int64_t {
    const auto job = weak.lock();
    return job ? job->on_timer() : -1;
  });
  return self;
}

// --- links

void TreeJob::admit(Guest guest) {
  const std::lock_guard lock(mutex_);
  const int32_t rank = guest.hello.rank;
  const bool known = rank >= 0 && rank < config_.ranks && guest.hello.ranks == config_.ranks;
  if (phase_ == Phase::kLeft || !known || !guest.versions.ok()) return;
  if (guest.hello.purpose == Purpose::kFetch) return answer_fetch(guest);
  if (guest.hello.purpose == Purpose::kMend) return admit_mended(guest);
  if (guest.hello.purpose != Purpose::kLink) return;
  auto link = std::make_shared<Link>();
  link->rank = rank;
  link->channel = guest.channel;
  if (phase_ != Phase::kJoining) {
    const Status why = phase_ == Phase::kFailed
                           ? failure_.clone()
                           : fail(FSCCL_ERR_PROTOCOL, "rank {} is a member already", rank);
    return send(*link, FrameType::kFailure, encode(to_failure(why)));
  }
  // A child that connects again has given its earlier connection up.
  const auto earlier = std::find_if(links_.begin(), links_.end(), [&](const LinkPtr& other) {
    return other->rank == rank && !other->is_parent;
  });
  if (earlier != links_.end()) drop_link(LinkPtr(*earlier));
  if (const Status added = add_link(link); !added.ok()) return fail_all(added, nullptr);
  std::vector<MemberRecord> members;
  for (const int32_t arrived : arrivals_) members.push_back(records_[static_cast<size_t>(arrived)]);
  perform(steps_.child_linked(rank), encode_members(members));
}

Status TreeJob::add_parent(FramedSocket channel) {
  const std::lock_guard lock(mutex_);
  auto link = std::make_shared<Link>();
  link->rank = config_.parent_rank;
  link->is_parent = true;
  link->channel = std::make_shared<FramedSocket>(std::move(channel));
  return add_link(link);
}

Status TreeJob::add_rendezvous(FramedSocket channel) {
  const std::lock_guard lock(mutex_);
  auto link = std::make_shared<Link>();
  link->channel = std::make_shared<FramedSocket>(std::move(channel));
  return add_link(link);
}

Status TreeJob::add_link(LinkPtr link) {
  link->channel->allow(kMaxTableBytes);
  const std::weak_ptr<TreeJob> weak = weak_from_this();
  const std::weak_ptr<Link> weak_link = link;
  const auto call = [weak, weak_link](void (TreeJob::*what)(const LinkPtr&)) {
    const auto job = weak.lock();
    const auto strong_link = weak_link.lock();
    if (!job || !strong_link) return;
    Undo undo([&] { job->break_off(strong_link); });
    ((*job).*what)(strong_link);
    undo.keep();
  };
  FSCCL_TRY(Reactor::instance().watch(
      link->channel->fd(), [call] { call(&TreeJob::on_readable); },
      [call] { call(&TreeJob::on_writable); }));
  Undo undo([&] { Reactor::instance().unwatch(link->channel->fd()); });
  links_.push_back(link);
  undo.keep();
  push(*link);
  link->unread = true;  // the other side may have sent more with its last answer; on_timer() looks
  Reactor::instance().kick();
  return success();
}

void TreeJob::send(Link& link, FrameType type, ByteView payload) {
  link.channel->queue(type, payload);
  push(link);
}

void TreeJob::push(Link& link) {
  const Result<bool> all = link.channel->pump_out();
  if (all.ok() && !all.value()) Reactor::instance().want_writable(link.channel->fd(), true);
  // An error shows as the end of the input, which is where a dead neighbour is dealt with.
}

void TreeJob::send_all(FrameType type, ByteView payload, const Link* but) {
  for (const LinkPtr& link : links_)
    if (link.get() != but) send(*link, type, payload);
}

void TreeJob::perform(const TreeSteps::Sends& sends, ByteView carried) {
  using To = TreeSteps::To;
  for (const TreeSteps::Send& step : sends)
    for (const LinkPtr& link : links_) {
      const To kind = link->is_parent ? To::kParent : link->rank < 0 ? To::kRendezvous : To::kChild;
      if (kind != step.to || (kind == To::kChild && link->rank != step.child)) continue;
      send(*link, step.type, step.carries ? carried : ByteView());
    }
}

void TreeJob::on_writable(const LinkPtr& link) {
  const std::lock_guard lock(mutex_);
  const Result<bool> all = link->channel->pump_out();
  if (!all.ok() || all.value()) Reactor::instance().want_writable(link->channel->fd(), false);
}

void TreeJob::on_readable(const LinkPtr& link) {
  {
    const std::lock_guard lock(mutex_);
    if (std::find(links_.begin(), links_.end(), link) == links_.end()) return;
    const Status open = link->channel->pump_in();
    Frame frame;
    for (;;) {
      const Result<bool> complete = link->channel->next(frame);
      link->met |= complete.ok() && complete.value();
      const bool good = complete.ok() && (!complete.value() || handle(*link, frame).ok());
      if (!good) {  // nothing that the neighbour says later counts
        link_closed(link, "sent a message that makes no sense");
        break;
      }
      if (!complete.value()) {
        if (!open.ok()) link_closed(link, "ended");
        break;
      }
      if (std::find(links_.begin(), links_.end(), link) == links_.end()) break;
    }
  }
  deliver_lives();
  deliver_losses();
}

Status TreeJob::handle(Link& link, const Frame& frame) {
  switch (frame.type) {
    case FrameType::kMembers: {
      if (steps_.has_members() || (!link.is_parent && link.rank >= 0))
        return bad_payload("Members");
      FSCCL_TRY(take_members(frame.payload));
      advance_join(steps_.members_came(arrivals_), frame.payload);
      return success();
    }
    case FrameType::kReady:
      advance_join(steps_.child_ready(link.rank), {});
      return success();
    case FrameType::kGo:
      if (link.is_parent) advance_join(steps_.may_go(), {});
      return success();
    case FrameType::kFailure: {
      FSCCL_ASSIGN(const Failure failure, decode_failure(frame.payload));
      fail_all(to_status(failure), &link);
      return success();
    }
    case FrameType::kGather:
      if (link.is_parent || link.rank < 0 ||
          !gather_.parts.emplace(link.rank, frame.payload).second)
        return bad_payload("Gather");
      advance_gather();
      return success();
    case FrameType::kGathered:
      if (!link.is_parent) return bad_payload("Gathered");
      perform(steps_.gathered(), frame.payload);
      gather_.result = frame.payload;
      changed_.notify_all();
      return success();
    case FrameType::kLoss:
    case FrameType::kGoodbye: {
      FSCCL_ASSIGN(const std::vector<LostRank> losses, decode_losses(frame.payload, config_.ranks));
      for (const LostRank& lost : losses) lose(lost, &link);
      if (frame.type == FrameType::kGoodbye) lose({link.rank, true}, &link);
      return success();
    }
    case FrameType::kVotes:
      return hear_votes(link, frame.payload);
    case FrameType::kBeat:
      return hear_beat(link, frame.payload);
    default:
      return bad_payload("tree");
  }
}

void TreeJob::drop_link(const LinkPtr& link) {
  Reactor::instance().unwatch(link->channel->fd());  // does not wait: this is the service thread
  std::erase(links_, link);
  if (!link->is_parent) {
    steps_.child_dropped(link->rank);
    gather_.parts.erase(link->rank);
  }
  changed_.notify_all();
}

void TreeJob::link_closed(const LinkPtr& link, const char* what) {
  drop_link(link);
  if (!link->met) {  // the other end comes again, or the mender looks for it
    mend_due_ns_ = 0;
    return;
  }
  if (link->rank < 0) {
    if (phase_ != Phase::kJoining) return;
    const int32_t rank = config_.rendezvous_rank;
    fail_all(rank < 0
                 ? fail(FSCCL_ERR_LINK,
                        "the process that made the unique id, where the ranks meet, has ended")
                 : fail(FSCCL_ERR_PEER_DEAD,
                        "rank {}, where the ranks meet, ended while the job was being joined", rank)
                       .with_peer(config_.rank, rank),
             nullptr);
    return;
  }
  if (phase_ == Phase::kJoining)
    fail_all(
        fail(FSCCL_ERR_PEER_DEAD, "rank {} {} while the job was being joined", link->rank, what)
            .with_peer(config_.rank, link->rank),
        nullptr);
  lose({link->rank, false}, nullptr);
}

// --- joining

Status TreeJob::take_members(ByteView payload) {
  FSCCL_ASSIGN(const std::vector<MemberRecord> members, decode_members(payload, config_.ranks));
  const auto order = static_cast<size_t>(config_.order);
  if (members[order].rank != config_.rank) return bad_payload("Members");
  for (const MemberRecord& member : members) {
    const auto rank = static_cast<size_t>(member.rank);
    records_[rank] = member;
    members_[rank] = {member.host, member.pid, member.uid, member.start_time};
    arrivals_.push_back(member.rank);
  }
  return success();
}

void TreeJob::advance_join(const TreeSteps::Sends& sends, ByteView carried) {
  if (phase_ != Phase::kJoining) return;
  perform(sends, carried);
  if (!steps_.joined()) return;
  const auto kept = std::find_if(links_.begin(), links_.end(),
                                 [](const LinkPtr& link) { return link->rank < 0; });
  if (kept != links_.end()) drop_link(LinkPtr(*kept));
  phase_ = Phase::kJoined;
  changed_.notify_all();
}

void TreeJob::fail_all(const Status& why, const Link* from) {
  if (phase_ == Phase::kFailed || phase_ == Phase::kLeft) return;
  Status copy = why.clone();
  if (phase_ == Phase::kJoining) phase_ = Phase::kFailed;
  if (failure_.ok()) {
    failure_ = std::move(copy);
    changed_.notify_all();
    send_all(FrameType::kFailure, encode(to_failure(failure_)), from);
  }
  changed_.notify_all();
}

// Is called when memory was too short for what a neighbour said, so that the link has lost a
// message and cannot be used any more. Both sides see its end and deal with it when there is memory
// again. An exchange that is under way fails now.
void TreeJob::break_off(const LinkPtr& link) {
  const std::lock_guard lock(mutex_);
  link->channel->shutdown();
  if (phase_ == Phase::kLeft || !failure_.ok() || no_memory_.ok()) return;
  if (phase_ == Phase::kJoining) phase_ = Phase::kFailed;
  failure_ = std::move(no_memory_);
  changed_.notify_all();
}

void TreeJob::give_up(const Status& why) {
  const std::lock_guard lock(mutex_);
  fail_all(why, nullptr);
}

std::string TreeJob::what_is_missing() const {
  if (!steps_.has_members()) return "not all ranks have come, or the list of them has not";
  const std::vector<int32_t> missing = steps_.missing();
  return missing.empty() ? "this rank is ready, others are not"
                         : fmt::format(
                               "ranks {} or ranks below them have not linked up; do they run, and "
                               "can hosts connect to each other at any port?",
                               list_ranks(missing));
}

// Returns a rank of this host whose process has ended, or -1 if none has or that cannot be told. If
// FSCCL_HOST_ID says which ranks share a host, their processes may be in another namespace and not
// visible.
//
// The ranks of a host share the looks (share_of_looks()), because a look reads files of the system.
int32_t TreeJob::ended_here() const {
  const auto visible = [](const MemberRecord& one) {
    const char state = state_of(one.pid, one.start_time, one.pid);
    return state != 'X' && state != 'Z';
  };
  if (!steps_.has_members() || !visible(config_.self)) return -1;
  std::vector<const MemberRecord*> on_host;
  size_t self = 0;
  for (const MemberRecord& member : records_) {
    if (member.host != config_.self.host) continue;
    if (member.rank == config_.rank) self = on_host.size();
    on_host.push_back(&member);
  }
  bool in_sight = config()->host_id.empty();
  int32_t ended = -1;
  for (const size_t place : share_of_looks(self, on_host.size())) {
    const MemberRecord& member = *on_host[place];
    if (member.pid == config_.self.pid || member.start_time == 0) continue;
    if (visible(member))
      in_sight = true;
    else if (ended < 0)
      ended = member.rank;
  }
  return in_sight ? ended : -1;
}

// If a rank dies after it has registered and before others are linked to it, no link breaks. So the
// ranks of its host look whether its process is there.
Status TreeJob::finish_join(Deadline deadline) {
  std::unique_lock lock(mutex_);
  const auto decided = [&] { return phase_ != Phase::kJoining; };
  const auto knows_missing = [&] { return steps_.has_members() && !steps_.subtree_joined(); };
  while (!decided()) {
    // A rank that knows which ranks are missing gives up a little earlier, so that the others hear
    // it from that rank. As long as only the rendezvous can know, this rank waits a little longer,
    // so that the rendezvous can say it.
    const bool knows = knows_missing();
    const int64_t left_ns = deadline.left_ns(kLongestWaitNs);
    const int64_t early_ns = knows ? std::min<int64_t>(left_ns / 10, 200'000'000) : 0;
    const int64_t late_ns = steps_.has_members() ? 0 : kRendezvousWordNs;
    const int64_t until_ns = now_ns() + left_ns - early_ns + late_ns;
    const WaitEnd end =
        wait_until([&] { return decided() || knows != knows_missing(); },
                   Deadline::at(std::min(until_ns, now_ns() + kLookNs)), kNothingBreaks,
                   UntilNotified{lock, changed_});  // a failure of the job decides, too
    if (end != WaitEnd::late) continue;
    if (const int32_t ended = ended_here(); ended >= 0) {
      // The rank may have ended because another rank died, and may have told the others of it. This
      // news gets time to arrive.
      if (wait_until(decided, Deadline::at(now_ns() + kNewsNs), kNothingBreaks,
                     UntilNotified{lock, changed_}) != WaitEnd::late)
        continue;
      fail_all(fail(FSCCL_ERR_PEER_DEAD, "rank {} ended while the job was being joined", ended)
                   .with_peer(config_.rank, ended),
               nullptr);
    } else if (deadline.left_ns() <= early_ns + 1'000'000)
      fail_all(fail(FSCCL_ERR_TIMEOUT, "rank {} gave up joining {} ranks: {}", config_.rank,
                    config_.ranks, what_is_missing()),
               nullptr);
  }
  return phase_ == Phase::kJoined ? success() : failure_.clone();
}

}  // namespace fsccl
