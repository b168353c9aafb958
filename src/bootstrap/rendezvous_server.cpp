#include "bootstrap/rendezvous_server.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/config.h"
#include "base/fork.h"
#include "base/immortal.h"
#include "base/reactor.h"
#include "base/threads.h"
#include "base/undo.h"

namespace fsccl {

namespace {

constexpr int64_t kLongestLingerNs = 30'000'000'000;
constexpr int64_t kBeforeExitNs =
    // After a failure, a process that ends waits so long for ranks that come a little later, or
    // that still look for their parent.
    1'000'000'000;
constexpr int64_t kLeaveLookNs = 2'000'000;

// The rendezvous servers of this process, which this list keeps alive. The list is never destroyed,
// because the service thread may outlive static destructors.
struct Open {
  std::mutex mutex;
  std::vector<std::shared_ptr<RendezvousServer>> list;
  bool watched = false;  // tell_before_exit() is registered
};
Open& open_servers() {
  static Immortal<Open> open;
  return open.get();
}

void answer(FramedSocket& channel, FrameType type, ByteView payload) {
  channel.queue(type, payload);
  // The socket is empty and takes these few hundred bytes at once. An error means that the guest
  // has closed its end, and then nobody needs the answer.
  (void)channel.pump_out().ok();
}

}  // namespace

std::string list_ranks(const std::vector<int32_t>& ranks) {
  constexpr size_t kShown = 16;
  std::string text;
  for (size_t i = 0; i < std::min(ranks.size(), kShown); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : ", ", ranks[i]);
  if (ranks.size() > kShown) text += fmt::format(" and {} more", ranks.size() - kShown);
  return text;
}

// After a failure the server stays as long as ranks wait for each other (FSCCL_TIMEOUT_MS), but at
// most kLongestLingerNs, to tell late ranks why the job failed.
RendezvousServer::RendezvousServer(uint64_t job)
    : job_(job),
      linger_ns_(std::min(kLongestLingerNs, config()->timeout_ms * 1'000'000)),
      no_memory_(fail(FSCCL_ERR_OUT_OF_MEMORY,
                      "the process where the ranks meet got no memory from the system")) {}

Status RendezvousServer::open(const Credentials& credentials, uint64_t meeting, uint64_t job,
                              std::vector<Fd> listeners, std::string advice) {
  std::shared_ptr<RendezvousServer> self(new RendezvousServer(job));
  self->advice_ = std::move(advice);
  return self->begin(credentials, meeting, std::move(listeners));
}

void RendezvousServer::refuse(const Credentials& credentials, uint64_t meeting, int32_t ranks,
                              std::vector<Fd> listeners, const Status& why, Deadline deadline) {
  const std::shared_ptr<RendezvousServer> self(new RendezvousServer(meeting));
  self->ranks_ = ranks;
  self->told_.insert(0);  // the rank that refuses
  self->fail_all(why);
  if (self->begin(credentials, meeting, std::move(listeners)).ok() && why.code() == FSCCL_ERR_LIMIT)
    tell_all(self, deadline);
}

Status RendezvousServer::begin(const Credentials& credentials, uint64_t meeting,
                               std::vector<Fd> listeners) {
  const std::weak_ptr<RendezvousServer> weak = weak_from_this();
  FSCCL_ASSIGN(std::shared_ptr<Reception> reception,
               Reception::open(credentials, meeting, -1, std::move(listeners), [weak](Guest guest) {
                 if (const auto server = weak.lock()) server->admit(std::move(guest));
               }));
  const std::lock_guard lock(mutex_);
  reception_ = std::move(reception);
  hook_ = Reactor::instance().add_hook([weak]() -> int64_t {
    const auto server = weak.lock();
    return server ? server->on_timer() : -1;
  });
  Open& open = open_servers();
  const std::lock_guard open_lock(open.mutex);
  open.list.push_back(shared_from_this());
  if (!open.watched) open.watched = std::atexit(tell_before_exit) == 0;
  return success();
}

bool RendezvousServer::has_told_all(int64_t now) {
  const std::lock_guard lock(mutex_);
  const bool failed_now = state_ == State::kFailed && now - failed_ns_ < kBeforeExitNs;
  return !failed_now || (ranks_ > 0 && told_.size() >= static_cast<size_t>(ranks_));
}

// Runs when the process ends. Perhaps no other process knows why a job failed, so this one waits a
// moment for the ranks that have not been told.
void RendezvousServer::tell_before_exit() {
  if (forked()) return;
  std::vector<std::shared_ptr<RendezvousServer>> left;
  {
    const std::lock_guard lock(open_servers().mutex);
    left = open_servers().list;
  }
  if (left.empty() || Reactor::instance().in_service_thread()) return;
  for (const auto& server : left) tell_all(server, Deadline::never());
}

void RendezvousServer::tell_all(const std::shared_ptr<RendezvousServer>& self, Deadline deadline) {
  wait_until([&] { return self->has_told_all(now_ns()); }, deadline, kNothingBreaks,
             Naps(kLeaveLookNs));
}

RendezvousServer::~RendezvousServer() {
  if (root_) Reactor::instance().unwatch(root_->fd());
  Reactor::instance().remove_hook(hook_);
  if (reception_) reception_->close();
}

// Takes the server from the list. It is destroyed when the caller's own reference is gone.
void RendezvousServer::retire(const std::shared_ptr<RendezvousServer>& self) {
  Open& open = open_servers();
  const std::lock_guard lock(open.mutex);
  std::erase(open.list, self);
}

// Returns the server of this process for `job`, or null.
std::shared_ptr<RendezvousServer> RendezvousServer::of(uint64_t job) {
  Open& open = open_servers();
  const std::lock_guard lock(open.mutex);
  const auto found = std::find_if(open.list.begin(), open.list.end(),
                                  [&](const auto& server) { return server->job_ == job; });
  return found == open.list.end() ? nullptr : *found;
}

void RendezvousServer::cancel(uint64_t job) {
  if (const auto server = of(job)) retire(server);
}

void RendezvousServer::hear(uint64_t job, int32_t rank, const Status& why) {
  const auto server = of(job);
  if (!server) return;
  const std::lock_guard lock(server->mutex_);
  if (server->state_ == State::kOver) return;
  server->fail_all(why);
  server->told_.insert(rank);
}

void RendezvousServer::admit(Guest guest) {
  const auto keep = shared_from_this();
  const std::lock_guard lock(mutex_);
  Undo undo([&] { give_up(); });
  admit_locked(guest);
  undo.keep();
}

// Is called when memory is too short. The first rank sees the end of its connection and tells the
// ranks that have come. Ranks that come later are told that memory was short, if there is memory
// for the answer.
void RendezvousServer::give_up() {
  if (root_) root_->shutdown();
  if (state_ == State::kFailed || no_memory_.ok()) return;
  state_ = State::kFailed;
  failure_ = std::move(no_memory_);
  over_ns_ = now_ns() + linger_ns_;
}

void RendezvousServer::admit_locked(Guest& guest) {
  Status status;
  if (!guest.versions.ok()) {
    status = guest.versions.clone();
  } else if (guest.request.type == FrameType::kFailure) {
    Result<Failure> failure = decode_failure(guest.request.payload);
    if (!failure.ok()) return;
    status = to_status(failure.value());
  } else if (guest.hello.purpose != Purpose::kRegister ||
             guest.request.type != FrameType::kRegister) {
    return;
  } else {
    const Result<Register> request = decode_register(guest.request.payload);
    if (!request.ok()) return;
    status = place(guest, request.value());
  }
  if (status.ok()) return;
  fail_all(status);
  told_.insert(guest.hello.rank);
  answer(*guest.channel, FrameType::kFailure, encode(to_failure(failure_)));
}

Status RendezvousServer::place(Guest& guest, const Register& request) {
  if (state_ == State::kFailed) return failure_.clone();
  MemberRecord member = request.member;
  const SocketAddress from = peer_address(guest.channel->fd());
  member.via_unix = from.is_unix();
  if (!from.is_unix()) member.ip = ip_of(from);
  member.rank = guest.hello.rank;
  const int64_t now = now_ns();
  if (roll_.members().empty()) waited_since_ns_ = now;
  FSCCL_ASSIGN(const int32_t order, roll_.enter(member, guest.hello.ranks));
  const auto left_ms = static_cast<int64_t>(std::min<uint64_t>(request.left_ms, uint64_t{1} << 40));
  // The server gives up before the rank does, so that its reason arrives in time.
  const int64_t margin_ms = std::min<int64_t>(left_ms / 10, 500);
  give_up_ns_ = std::min(give_up_ns_, now + (left_ms - margin_ms) * 1'000'000);

  Assign assign{job_, order, {}};
  if (order > 0) {
    assign.parent = roll_.parent_of(order);
    // A parent on this host came over a Unix socket or loopback, so it has no address for others:
    // the child reaches it at the address at which it has reached this process.
    const SocketAddress local = local_address(guest.channel->fd());
    if (!local.is_unix() && (assign.parent.via_unix || is_loopback(assign.parent.ip)))
      assign.parent.ip = ip_of(local);
    const bool by_unix = assign.parent.via_unix && member.via_unix;
    if (!by_unix && assign.parent.port == 0)
      return fail(FSCCL_ERR_LINK,
                  "rank {} cannot reach rank {}: they are on different hosts or in different "
                  "network namespaces, and TCP is off "
                  "(FSCCL_BOOTSTRAP_TCP=0, or the launcher says that all ranks share one host)",
                  member.rank, assign.parent.rank);
  }
  answer(*guest.channel, FrameType::kAssign, encode(assign));
  if (order == 0) keep_root(guest);
  finish_if_complete();
  return success();
}

void RendezvousServer::keep_root(Guest& guest) {
  if (root_) Reactor::instance().unwatch(root_->fd());
  root_ = guest.channel;
  const Status watched = Reactor::instance().watch(
      root_->fd(),
      [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        Undo undo([&] {
          const std::lock_guard lock(self->mutex_);
          self->give_up();
        });
        self->on_root_readable();
        undo.keep();
      },
      [weak = weak_from_this()] {
        const auto self = weak.lock();
        if (!self) return;
        const std::lock_guard lock(self->mutex_);
        const Result<bool> all = self->root_->pump_out();
        Reactor::instance().want_writable(self->root_->fd(), all.ok() && !all.value());
      });
  if (!watched.ok()) fail_all(watched);
}

void RendezvousServer::finish_if_complete() {
  if (state_ != State::kCollecting || !roll_.complete() || !root_) return;
  state_ = State::kComplete;
  root_->queue(FrameType::kMembers, encode_members(roll_.members()));
  const Result<bool> all = root_->pump_out();
  Reactor::instance().want_writable(root_->fd(), all.ok() && !all.value());
}

void RendezvousServer::on_root_readable() {
  const auto keep = shared_from_this();
  const std::lock_guard lock(mutex_);
  if (state_ == State::kOver) return;
  const Status open = root_->pump_in();
  Frame frame;
  for (;;) {
    const Result<bool> complete = root_->next(frame);
    if (!complete.ok() || !complete.value()) break;
    if (frame.type == FrameType::kDone) {
      state_ = State::kOver;
      Reactor::instance().unwatch(root_->fd());
      return retire(keep);
    }
    if (frame.type != FrameType::kFailure) continue;
    if (const Result<Failure> failure = decode_failure(frame.payload); failure.ok())
      fail_all(to_status(failure.value()));
  }
  if (open.ok()) return;
  Reactor::instance().unwatch(root_->fd());
  const MemberRecord& first = roll_.members().front();
  fail_all(fail(FSCCL_ERR_PEER_DEAD, "rank {} (process {}) ended while the job was being joined",
                first.rank, first.pid)
               .with_peer(-1, first.rank));
}

void RendezvousServer::fail_all(const Status& why) {
  if (state_ == State::kFailed) return;
  failure_ = why.clone();
  state_ = State::kFailed;
  failed_ns_ = now_ns();
  over_ns_ = failed_ns_ + linger_ns_;
  if (ranks_ == 0) ranks_ = roll_.ranks();
  if (!root_) return;
  told_.insert(roll_.members().front().rank);
  root_->queue(FrameType::kFailure, encode(to_failure(failure_)));
  const Result<bool> all = root_->pump_out();
  Reactor::instance().want_writable(root_->fd(), all.ok() && !all.value());
}

int64_t RendezvousServer::on_timer() {
  const auto keep = shared_from_this();
  const std::lock_guard lock(mutex_);
  const int64_t now = now_ns();
  if (state_ == State::kCollecting && give_up_ns_ <= now) {
    const int strangers = reception_->strangers();
    fail_all(fail(
        FSCCL_ERR_TIMEOUT,
        "{} of {} ranks joined in {} ms; missing: {}{}. Are they running, and is the network to "
        "them up? See FSCCL_TIMEOUT_MS{}",
        roll_.members().size(), roll_.ranks(), (now - waited_since_ns_) / 1'000'000,
        list_ranks(roll_.missing()),
        strangers == 0
            ? ""
            : fmt::format(" ({} connections came without a proof of belonging to the job)",
                          strangers),
        advice_));
  }
  if (state_ == State::kFailed) {
    if (over_ns_ > now) return over_ns_ - now;
    state_ = State::kOver;
    if (root_) Reactor::instance().unwatch(root_->fd());
    retire(keep);
    return -1;
  }
  return state_ == State::kCollecting && give_up_ns_ != INT64_MAX ? give_up_ns_ - now : -1;
}

}  // namespace fsccl
