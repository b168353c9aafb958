// How the loss of a rank becomes known: the end of a link, and what neighbours pass on along the
// remaining tree (tree.h).
#include "bootstrap/tree.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/reactor.h"
#include "base/socket.h"
#include "base/undo.h"
#include "bootstrap/credentials.h"

namespace fsccl {

namespace {

constexpr int64_t kLeaverDelayNs = 10'000'000;
constexpr int64_t kGoodbyeMs = 200;
// A goodbye that the network has lost three times arrives in this time. Only a host that does not
// answer takes as long.
constexpr int64_t kArrivalMs = 2000;
// The time before links are made in place of those to a rank that has left. By then all ranks have
// usually left, and no link is worth making.
constexpr int64_t kLeavingTogetherNs = 1'000'000'000;

}  // namespace

// Is called when others hold this rank for dead. Its neighbours may not know this yet, and may hear
// of the others through this rank alone. So this rank tells them, and they mend the tree without
// it.
void TreeJob::be_expelled(const Link* from) {
  if (std::exchange(expelled_, true)) return;
  changed_.notify_all();
  send_all(FrameType::kLoss, encode_losses({{config_.rank, false}}), from);
}

void TreeJob::abandon() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (phase_ == Phase::kJoined) be_expelled(nullptr);
  } catch (const std::bad_alloc&) {
    // The others then wait for this rank until their deadline.
  }
}

void TreeJob::lose(const LostRank& lost, const Link* from) {
  if (lost.rank == config_.rank && !lost.left) be_expelled(from);
  if (lost.rank < 0 || lost.rank == config_.rank || phase_ == Phase::kLeft) return;
  if (lost_.contains(lost.rank)) return;
  // The loss is queued for the handler before it is recorded. If memory runs out in between, the
  // handler hears of it twice rather than never.
  undelivered_.push_back(lost);
  if (lost_.empty()) first_lost_ = lost.rank;
  lost_.emplace(lost.rank, lost.left);
  last_loss_ns_ = now_ns();
  mend_due_ns_ = std::min(mend_due_ns_, last_loss_ns_ + (lost.left ? kLeavingTogetherNs : 0));
  changed_.notify_all();
  if (lost.left && phase_ == Phase::kJoining)
    fail_all(fail(FSCCL_ERR_PEER_DEAD, "rank {} left while the job was being joined", lost.rank)
                 .with_peer(config_.rank, lost.rank),
             from);
  end_watch(lost);
  if (lost.left) {
    leavers_.push_back(lost);
    if (leavers_due_ns_ == INT64_MAX) leavers_due_ns_ = now_ns() + kLeaverDelayNs;
  } else {
    send_all(FrameType::kLoss, encode_losses({lost}), from);
  }
  advance_memberships();
}

void TreeJob::send_leavers(const Link* but) {
  leavers_due_ns_ = INT64_MAX;
  if (leavers_.empty()) return;
  send_all(FrameType::kLoss, encode_losses(std::exchange(leavers_, {})), but);
}

void TreeJob::on_loss(LossHandler handler) {
  {
    const std::lock_guard lock(mutex_);
    loss_handler_ = std::move(handler);
    if (undelivered_.empty() || phase_ == Phase::kLeft) return;
  }
  Reactor::instance().kick();  // losses are told from the service thread
}

void TreeJob::deliver_losses() {
  for (;;) {
    LostRank lost;
    LossHandler handler;
    {
      const std::lock_guard lock(mutex_);
      if (undelivered_.empty() || !loss_handler_ || phase_ == Phase::kLeft) return;
      handler = loss_handler_;
      lost = undelivered_.front();
      telling_ = true;
    }
    tell([&] { handler(lost.rank, lost.left); });
    // A handler that found no memory hears of the loss again.
    const std::lock_guard lock(mutex_);
    undelivered_.pop_front();
  }
}

// Runs a handler without the lock. The caller has set telling_.
void TreeJob::tell(FunctionRef<void()> handler) {
  const Undo told([this] {
    const std::lock_guard lock(mutex_);
    telling_ = false;
    changed_.notify_all();
  });
  handler();
}

int64_t TreeJob::on_timer() {
  for (;;) {
    LinkPtr unread;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::find_if(links_.begin(), links_.end(),
                                      [](const LinkPtr& link) { return link->unread; });
      if (found == links_.end()) break;
      unread = *found;
      unread->unread = false;
    }
    Undo undo([&] { break_off(unread); });
    on_readable(unread);
    undo.keep();
  }
  const int64_t beat_ns = beat();
  deliver_lives();
  deliver_losses();
  const std::lock_guard lock(mutex_);
  if (phase_ == Phase::kLeft) return beat_ns;
  const int64_t now = now_ns();
  if (leavers_due_ns_ <= now) send_leavers(nullptr);
  const int64_t next_ns = std::min(leavers_due_ns_, mend_if_due(now));
  if (next_ns == INT64_MAX) return beat_ns;
  return beat_ns < 0 ? next_ns - now : std::min(next_ns - now, beat_ns);
}

// Reads what is left on a link that the service thread does not watch any more, and notes the
// losses. Ranks that hear of the others only through this rank would otherwise never learn of them.
void TreeJob::hear_out(Link& link) {
  const auto note = [this](const LostRank& lost) {
    if (lost.rank < 0 || lost.rank == config_.rank) return;
    if (lost_.empty()) first_lost_ = lost.rank;
    if (lost_.emplace(lost.rank, lost.left).second) leavers_.push_back(lost);
  };
  while (wait_ready(link.channel->fd(), Direction::kRead, Deadline::in_ms(0)).ok()) {
    const bool open = link.channel->pump_in().ok();
    Frame frame;
    for (;;) {
      const Result<bool> complete = link.channel->next(frame);
      if (complete.ok() && !complete.value()) break;
      if (!complete.ok()) return note({link.rank, false});
      if (frame.type != FrameType::kLoss && frame.type != FrameType::kGoodbye) continue;
      const Result<std::vector<LostRank>> losses = decode_losses(frame.payload, config_.ranks);
      if (!losses.ok()) return note({link.rank, false});
      for (const LostRank& lost : losses.value()) note(lost);
      if (frame.type == FrameType::kGoodbye) return note({link.rank, true});
    }
    if (!open) return note({link.rank, false});
  }
}

void TreeJob::leave() {
  std::vector<LinkPtr> links;
  std::map<int32_t, ThreadEnd> ends;
  {
    std::unique_lock lock(mutex_);
    if (phase_ == Phase::kLeft) return;
    // While links are being mended, a goodbye would not reach the ranks that this rank has no link
    // to yet.
    wait_until([&] { return !mending_; }, Deadline::in_ms(kGoodbyeMs), kNothingBreaks,
               UntilNotified{lock, changed_});
    phase_ = Phase::kLeft;
    links = std::exchange(links_, {});
    ends = std::exchange(ends_, {});
    loss_handler_ = nullptr;
    changed_.notify_all();
    // The end of a link tells a handler of the loss when the link is not in links_ any more, so
    // unwatch() does not wait for that handler.
    if (!Reactor::instance().in_service_thread())
      wait_until([&] { return !telling_; }, Deadline::never(), kNothingBreaks,
                 UntilNotified{lock, changed_});
  }
  if (mender_.joinable()) mender_.join();
  {
    // The table says first that this rank leaves. Otherwise a rank that mends the tree takes the
    // closed door for a death, and so does a neighbour that sees the service thread end.
    const std::lock_guard lock(mutex_);
    end_beats();
  }
  Reactor& reactor = Reactor::instance();
  if (reception_) reception_->close();
  for (const LinkPtr& link : links) reactor.unwatch(link->channel->fd());
  for (const auto& [rank, end] : ends) reactor.unwatch(end.fd.get());
  reactor.unwatch(datagrams_.get());
  for (const auto& [fd, fetch] : fetches_) reactor.unwatch(fd);  // nothing changes them any more
  reactor.remove_hook(hook_);
  const std::lock_guard lock(mutex_);
  datagrams_.reset();
  fetches_.clear();
  published_.clear();
  try {
    say_goodbye(links);
  } catch (const std::bad_alloc&) {  // the neighbours take the end of the links for a death
  }
  for (const LinkPtr& link : links) link->channel->shutdown();
}

void TreeJob::say_goodbye(const std::vector<LinkPtr>& links) {
  for (const LinkPtr& link : links) hear_out(*link);
  const Deadline deadline = Deadline::in_ms(kGoodbyeMs);
  const Bytes leavers = encode_losses(leavers_);
  for (const LinkPtr& link : links)
    if (link->rank >= 0) (void)link->channel->send(FrameType::kGoodbye, leavers, deadline).ok();
  // The neighbours then close their ends, so that acknowledgements that they owe come at once.
  for (const LinkPtr& link : links) link->channel->end_sending();
  // Waits until the goodbyes have arrived. If this rank closed its sockets before, the system might
  // not send again what the network has lost: a goodbye, or even the decided vote before it
  // (membership.h).
  const Deadline patience = Deadline::in_ms(kArrivalMs);
  const auto arrived = [](const LinkPtr& link) {
    return link->channel->arrived() || !link->channel->pump_in().ok();
  };
  wait_until([&] { return std::all_of(links.begin(), links.end(), arrived); }, patience,
             kNothingBreaks, between_attempts());
}

}  // namespace fsccl
