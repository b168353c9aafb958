// How sockets between ranks are opened and closed (node.h).
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <algorithm>

#include "base/fork.h"
#include "base/log.h"
#include "base/socket.h"
#include "base/wait.h"
#include "transports/tcp/node.h"

namespace fsccl::tcp {
namespace {

constexpr int64_t kMs = 1'000'000;
// how long this rank waits for a peer's system to answer, before the peer counts as unreachable
constexpr int64_t kReachNs = 20'000 * kMs;
constexpr int64_t kAttemptNs = 5'000 * kMs;    // for one of several addresses; doubles each round
constexpr int64_t kRoundNs = 20 * kMs;         // pause before all addresses are tried again
constexpr int64_t kHandshakeNs = 5'000 * kMs;  // within which a visitor must prove itself
constexpr int64_t kDoorNs = 20 * kMs;          // pause in accepting when descriptors are short
constexpr size_t kMostVisitors = 256;
constexpr int64_t kLeaveMs = 10'000;  // the longest wait until all bytes have left

}  // namespace

// ---- calling

void Node::dial(Link& link) {
  link.dial = std::make_unique<Dial>();
  link.dial->end_ns = now_ns() + kReachNs;
  dials_++;
  try_next(link);
}

// Tries the next address of a peer. Behind the last address it pauses before another round, or
// gives the peer up.
void Node::try_next(Link& link) {
  Dial& dial = *link.dial;
  const Endpoint& endpoint = endpoints_[static_cast<size_t>(link.rank)];
  const int64_t now = now_ns();
  while (dial.next < endpoint.addresses.size()) {
    const SocketAddress address = tcp_address(endpoint.addresses[dial.next++], endpoint.port);
    dial.until_ns =
        now + (endpoint.addresses.size() == 1 ? kReachNs : kAttemptNs << std::min(dial.rounds, 7));
    Result<Fd> fd = begin_connecting(address);
    if (fd.ok()) {
      dial.caller =
          std::make_unique<Caller>(fd.take(), address, credentials_, rank_, link.rank, ranks_);
      link.dialled.store(dial.caller->fd(), std::memory_order_relaxed);
      if (watch(dial.caller->fd(), EPOLLOUT, about(About::dial, link.rank), EPOLL_CTL_ADD).ok())
        return;
      hang_up(link);
    }
    dial.problem = fd.ok() ? "too many open files" : fd.status().text();
  }
  // A peer whose system answered may be busy for any time: the job decides whether it lives.
  if (dial.again && (dial.answered || now < dial.end_ns)) {
    dial.next = 0;
    dial.rounds++;
    dial.again = dial.answered = false;
    dial.until_ns = now + kRoundNs;
    return;
  }
  std::string problem = fmt::format(
      "no connection to rank {}: {}; FSCCL_TCP_INTERFACE must lead to it, and no firewall be "
      "between",
      link.rank, dial.problem);
  end_dial(link);
  link.over = true;
  broke(link.rank, std::move(problem));
}

void Node::hang_up(Link& link) noexcept {
  Dial& dial = *link.dial;
  link.dialled.store(-1, std::memory_order_relaxed);
  if (dial.caller) unwatch(dial.caller->fd());  // there is no descriptor if a link has taken it
  dial.caller.reset();
}

void Node::end_dial(Link& link) noexcept {
  if (!link.dial) return;
  hang_up(link);
  link.dial.reset();
  dials_--;
}

// `again` says that the same attempt may succeed at another time.
void Node::attempt_failed(Link& link, const Status& why, bool again) {
  link.dial->problem = why.text();
  link.dial->again |= again;
  hang_up(link);
  try_next(link);
}

void Node::dialled(Link& link) {
  if (!link.dial || !link.dial->caller) return;
  Caller& caller = *link.dial->caller;
  const bool connecting = !caller.connected();
  Result<bool> through = caller.go_on();
  link.dial->answered |= caller.connected();
  // A peer that answered and then closed has no room now, or connects to this rank itself.
  if (!through.ok())
    return attempt_failed(link, through.status(),
                          caller.connected() && through.status().code() == FSCCL_ERR_LINK);
  if (through.value()) return adopt(link, caller.take());
  if (connecting)
    if (Status watched = watch(caller.fd(), EPOLLIN, about(About::dial, link.rank), EPOLL_CTL_MOD);
        !watched.ok())
      attempt_failed(link, watched, true);
}

// ---- being called

void Node::accept_all() {
  while (true) {
    Result<Fd> fd = accept_connection(listener_.get());
    if (!fd.ok()) {
      if (!visitors_.empty()) see_off(visitors_.begin());
      door_closed_until_ns_ = now_ns() + kDoorNs;
      (void)watch(listener_.get(), 0, about(About::listener), EPOLL_CTL_MOD).ok();
      return;
    }
    if (!fd.value().valid()) return;
    if (visitors_.size() >= kMostVisitors)
      see_off(
          std::min_element(visitors_.begin(), visitors_.end(), [](const auto& a, const auto& b) {
            return a.second.deadline_ns() < b.second.deadline_ns();
          }));
    const int number = fd.value().get();
    const auto visitor =
        visitors_.try_emplace(number, fd.take(), credentials_, rank_, now_ns() + kHandshakeNs)
            .first;
    if (!watch(number, EPOLLIN, about(About::visitor, number), EPOLL_CTL_ADD).ok())
      visitors_.erase(visitor);
  }
}

void Node::see_off(std::map<int, Visitor>::iterator visitor) noexcept {
  unwatch(visitor->second.fd());  // there is no descriptor if a link has taken it
  visitors_.erase(visitor);
}

void Node::visited(int fd) {
  const auto found = visitors_.find(fd);
  if (found == visitors_.end()) return;
  bool at_the_door = false;  // stays false if memory is short; the visitor may come again
  spare(rank_, [&] { at_the_door = stays(found->second); });
  if (!at_the_door) see_off(found);
}

// Returns true if the visitor has yet to prove itself. A visitor that has done so may become the
// link to its rank.
bool Node::stays(Visitor& visitor) {
  const Result<std::optional<int>> who = visitor.go_on(ranks_);
  if (!who.ok()) return false;
  if (!who.value()) return true;
  Link& link = links_to_[static_cast<size_t>(*who.value())];
  const Caller* const ours = link.dial ? link.dial->caller.get() : nullptr;
  const bool ours_counts = ours && ours->answered() && rank_ < link.rank;
  if (!link.over && link.fd < 0 && !ours_counts && visitor.welcome().ok())
    adopt(link, visitor.take());
  return false;
}

void Node::adopt(Link& link, Fd fd) {
  const bool watched = watch(fd.get(), EPOLLIN, about(About::link, link.rank), EPOLL_CTL_MOD).ok();
  end_dial(link);
  if (!watched)
    return broke(link.rank, fmt::format("no connection to rank {}: epoll_ctl", link.rank));
  link.fd.store(fd.release(), std::memory_order_relaxed);
  // A peer that computes for long and reads nothing is not lost. Heartbeats tell of lost peers, so
  // TCP must not give up.
  const unsigned never = 0;
  setsockopt(link.fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &never, sizeof never);
  flush_all();
}

// Ends what is due: attempts, pauses between them, visits, and the pause in accepting.
void Node::keep_time() {
  const int64_t now = now_ns();
  if (now < next_time_ns_) return;
  next_time_ns_ = now + kMs;
  for (Link& link : links_to_) {
    if (!link.dial || now < link.dial->until_ns) continue;
    const bool only = endpoints_[static_cast<size_t>(link.rank)].addresses.size() == 1;
    spare(link.rank, [&] {
      const Caller* const caller = link.dial->caller.get();
      if (!caller) try_next(link);
      // An attempt that has connected to a peer's only address, or has been answered, goes on:
      // another attempt would be no better.
      else if (!caller->connected() || !(only || caller->answered()))
        attempt_failed(link, fail(FSCCL_ERR_TIMEOUT, "no answer"), true);
    });
  }
  for (auto next = visitors_.begin(); next != visitors_.end();)
    if (const auto visitor = next++; visitor->second.deadline_ns() <= now) see_off(visitor);
  if (door_closed_until_ns_ && now >= door_closed_until_ns_) {
    door_closed_until_ns_ = 0;
    (void)watch(listener_.get(), EPOLLIN, about(About::listener), EPOLL_CTL_MOD).ok();
  }
}

// ---- leaving

// Sends a goodbye behind all messages, and waits until the systems of the other hosts have
// received everything: if a socket is closed while it holds unread bytes, then the system drops
// what it has sent and what has not arrived yet.
Node::~Node() {
  stop_service();
  remove_fork_hook(fork_hook_);
  const std::lock_guard lock(mutex_);
  const Deadline deadline = Deadline::in_ms(kLeaveMs);
  for (Link& link : links_to_) {
    if (link.fd < 0 && !link.dial) continue;
    mirror::Header goodbye{};
    goodbye.kind = mirror::MessageKind::goodbye;
    send(link.rank, goodbye, {}, false);
  }
  const auto under_way = [&] {
    return std::any_of(links_to_.begin(), links_to_.end(), [&](Link& link) {
      int left = 0;
      const int fd = link.fd;
      if (fd < 0 || link.deaf) return !link.out.empty() && !broken(link.rank) && link.dial;
      return !link.out.empty() || (ioctl(fd, SIOCOUTQ, &left) == 0 && left > 0);
    });
  };
  const auto move_on = [&](int64_t) {
    if (look() | flush_all()) return;
    (void)arm();
    (void)wait_ready(epoll_.get(), Direction::kRead, Deadline::in_ms(1)).ok();
  };
  wait_until([&] { return !under_way(); }, deadline, kNothingBreaks, move_on);
  for (Link& link : links_to_) close_link(link);
}

}  // namespace fsccl::tcp
