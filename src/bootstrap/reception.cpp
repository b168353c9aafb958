#include "bootstrap/reception.h"

#include <unistd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/reactor.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"

namespace fsccl {

namespace {

constexpr int64_t kHandshakeMs = 5000;
constexpr int64_t kPauseNs = 20'000'000;
// The least time of a visitor: a crowd must not send away a visitor that is about to be let in.
constexpr int64_t kTurnMs = 500;

Nonce make_nonce() {
  Nonce nonce;
  random_bytes(nonce.data(), nonce.size());
  return nonce;
}

}  // namespace

Result<std::shared_ptr<Reception>> Reception::open(const Credentials& credentials, uint64_t job,
                                                   int32_t rank, std::vector<Fd> listeners,
                                                   Admit admit) {
  std::shared_ptr<Reception> self(new Reception(credentials, job, rank, std::move(admit)));
  FSCCL_TRY(self->start(std::move(listeners)));
  return self;
}

Status Reception::start(std::vector<Fd> listeners) {
  const std::lock_guard lock(mutex_);
  listeners_ = std::move(listeners);
  FSCCL_TRY(watch_listeners());
  hook_ = Reactor::instance().add_hook([weak = weak_from_this()]() -> int64_t {
    const auto self = weak.lock();
    return self ? self->on_timer() : -1;
  });
  return success();
}

Status Reception::watch_listeners() {
  for (const Fd& listener : listeners_) {
    FSCCL_TRY(
        Reactor::instance().watch(listener.get(), [weak = weak_from_this(), fd = listener.get()] {
          if (const auto self = weak.lock()) self->accept_all(fd);
        }));
  }
  return success();
}

// Callbacks may run until unwatch() and remove_hook() have returned, so the objects that they use
// are destroyed after that.
void Reception::close() {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;  // no callback changes anything from here on
  }
  Reactor& reactor = Reactor::instance();
  for (const Fd& listener : listeners_) reactor.unwatch(listener.get());
  for (const auto& [fd, visitor] : visitors_) reactor.unwatch(fd);
  reactor.remove_hook(hook_);
  const std::lock_guard lock(mutex_);
  listeners_.clear();
  visitors_.clear();
}

void Reception::accept_all(int listener) {
  const std::lock_guard lock(mutex_);
  while (!closed_) {
    if (visitors_.size() >= kMaxVisitors) {
      const int64_t turn_over_ns =
          longest()->second->deadline_ns - (kHandshakeMs - kTurnMs) * 1'000'000;
      if (turn_over_ns > now_ns()) return pause(turn_over_ns, true);
      dismiss(longest()->first, fail(FSCCL_ERR_TIMEOUT, "too many connections"));
    }
    Result<Fd> fd = accept_connection(listener);
    if (!fd.ok()) {
      // The system lacks a descriptor or memory. A visitor is dismissed to free its own, and
      // accepting pauses, because the listener would otherwise wake this thread without end.
      if (!visitors_.empty())
        dismiss(longest()->first, fail(FSCCL_ERR_LIMIT, "too many open files"));
      return pause(now_ns() + kPauseNs, false);
    }
    if (!fd.value().valid()) return;
    Undo sent_away([&] { ++strangers_; });
    if (greet(fd.take()).ok()) sent_away.keep();
  }
}

Status Reception::greet(Fd fd) {
  const int number = fd.get();
  const Status user = check_peer_user(number, credentials_.mode);
  auto visitor = std::make_unique<Visitor>(std::move(fd), credentials_, job_, rank_, make_nonce());
  visitor->deadline_ns = now_ns() + kHandshakeMs * 1'000'000;
  if (!user.ok()) {
    visitor->channel->queue(FrameType::kFailure, encode(to_failure(user)));
    (void)visitor->channel->pump_out().ok();
    return user.clone();
  }
  visitors_[number] = std::move(visitor);
  Undo undo([&] { visitors_.erase(number); });
  FSCCL_TRY(Reactor::instance().watch(number, [weak = weak_from_this(), number] {
    if (const auto self = weak.lock()) self->on_readable(number);
  }));
  undo.keep();
  return success();
}

void Reception::dismiss(int fd, const Status& why) {
  const auto found = visitors_.find(fd);
  if (found == visitors_.end()) return;
  ++strangers_;
  FramedSocket& channel = *found->second->channel;
  if (why.code() == FSCCL_ERR_AUTH) {
    channel.queue(FrameType::kFailure, encode(to_failure(why)));
    (void)channel.pump_out().ok();
  }
  Reactor::instance().unwatch(fd);
  visitors_.erase(found);
}

Reception::Visitors::iterator Reception::longest() {
  return std::min_element(visitors_.begin(), visitors_.end(), [](const auto& a, const auto& b) {
    return a.second->deadline_ns < b.second->deadline_ns;
  });
}

// Stops accepting until `until_ns`. If `crowded`, accepting goes on earlier when there is room at
// the door.
void Reception::pause(int64_t until_ns, bool crowded) {
  paused_until_ns_ = until_ns;
  crowded_ = crowded;
  for (const Fd& paused : listeners_) Reactor::instance().unwatch(paused.get());
}

// Accepts again. If the system refuses to watch the listeners, this is tried again a little later.
void Reception::resume() {
  pause(now_ns() + kPauseNs, false);
  if (watch_listeners().ok()) paused_until_ns_ = 0;
}

Result<bool> Reception::advance(Visitor& visitor) {
  for (;;) {
    const Purpose purpose = visitor.handshake.peer().purpose;
    if (visitor.step == Visitor::Step::kRequest &&
        (purpose == Purpose::kLink || purpose == Purpose::kMend))
      return true;
    Frame& frame = visitor.request;
    FSCCL_ASSIGN(const bool complete, visitor.channel->next(frame));
    if (!complete) return false;
    if (visitor.step == Visitor::Step::kRequest) return true;
    const FrameType expected =
        visitor.step == Visitor::Step::kHello ? FrameType::kHello : FrameType::kProof;
    if (frame.type != expected) return bad_payload("handshake");
    if (visitor.step == Visitor::Step::kHello) {
      FSCCL_ASSIGN(const Bytes challenge, visitor.handshake.challenge(frame.payload));
      if (visitor.handshake.peer().job != job_)
        return fail(FSCCL_ERR_PROTOCOL, "a guest of another job");
      visitor.channel->queue(FrameType::kChallenge, challenge);
      FSCCL_ASSIGN(const bool sent, visitor.channel->pump_out());
      if (!sent) return fail(FSCCL_ERR_LINK, "the other side does not read");
      visitor.step = Visitor::Step::kProof;
    } else {
      FSCCL_TRY(visitor.handshake.check(frame.payload));
      visitor.step = Visitor::Step::kRequest;
    }
  }
}

void Reception::on_readable(int fd) {
  Guest guest;
  {
    const std::lock_guard lock(mutex_);
    const auto found = visitors_.find(fd);
    if (closed_ || found == visitors_.end()) return;
    Visitor& visitor = *found->second;
    try {
      const Status pumped = visitor.channel->pump_in();
      Result<bool> through = advance(visitor);
      if (!through.ok()) return dismiss(fd, through.status());
      if (!through.value()) {
        if (!pumped.ok()) dismiss(fd, pumped);
        return;
      }
    } catch (const std::bad_alloc&) {  // part of the visitor's message may be lost
      dismiss(fd, success());
      throw;
    }
    Reactor::instance().unwatch(fd);
    guest.hello = visitor.handshake.peer();
    guest.versions = visitor.handshake.compare_versions();
    guest.channel = visitor.channel;
    guest.request = std::move(visitor.request);
    visitors_.erase(found);
  }
  admit_(std::move(guest));
}

// Dismisses the visitors that have taken too long, and ends a pause that is over.
int64_t Reception::on_timer() {
  const std::lock_guard lock(mutex_);
  if (closed_) return -1;
  const int64_t now = now_ns();
  std::vector<int> late;
  int64_t next_ns = INT64_MAX;
  for (const auto& [fd, visitor] : visitors_) {
    if (visitor->deadline_ns <= now)
      late.push_back(fd);
    else
      next_ns = std::min(next_ns, visitor->deadline_ns);
  }
  for (const int fd : late) dismiss(fd, fail(FSCCL_ERR_TIMEOUT, "no handshake in time"));
  if (paused_until_ns_ != 0) {
    if (paused_until_ns_ <= now || (crowded_ && visitors_.size() < kMaxVisitors)) {
      resume();
    }
    if (paused_until_ns_ != 0) {
      next_ns = std::min(next_ns, paused_until_ns_);
    }
  }
  return next_ns == INT64_MAX ? -1 : next_ns - now;
}

}  // namespace fsccl
