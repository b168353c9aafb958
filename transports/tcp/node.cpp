#include "transports/tcp/node.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fork.h"
#include "base/left_to_parent.h"
#include "transports/mirror/channel.h"

namespace fsccl::tcp {
namespace {

constexpr int kEventsAtOnce = 64;
constexpr size_t kKeptBytes = 64u << 10;  // the most memory for whole messages that a link keeps
constexpr uint32_t kLookEvery = 16;       // one in so many polls of a link looks at all others, too

}  // namespace

Node::Node(const fsccl_transport_job_t& job) : mirror::Node("tcp", job) {
  credentials_.mode = AuthMode::kSecret;
  credentials_.key = SecretKey(ByteView(job.key, kKeyBytes));
  for (int rank = 0; rank < ranks_; rank++) links_to_.emplace_back(*this, rank, checksum());
  writers_.reserve(links_to_.size());
}

Result<std::unique_ptr<Node>> Node::join(const fsccl_transport_job_t& job) {
  std::unique_ptr<Node> node(new Node(job));
  FSCCL_TRY(node->start());
  return node;
}

Status Node::watch(int fd, uint32_t events, uint64_t what, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = what;
  return epoll_ctl(epoll_.get(), operation, fd, &event) == 0 ? success()
                                                             : fail_errno(errno, "epoll_ctl");
}

void Node::unwatch(int fd) noexcept {
  if (fd < 0) return;
  epoll_event none{};
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &none);
}

Status Node::start() {
  epoll_ = make_fd([] { return epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_.valid()) return fail_errno(errno, "epoll_create1");
  wake_ = make_fd([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!wake_.valid()) return fail_errno(errno, "eventfd");
  FSCCL_ASSIGN(listener_, listen_tcp(0));
  FSCCL_ASSIGN(const Endpoint endpoint, own_endpoint(port_of(local_address(listener_.get()))));
  endpoint_ = encode(endpoint);
  FSCCL_TRY(watch(wake_.get(), EPOLLIN, about(About::wake), EPOLL_CTL_ADD));
  FSCCL_TRY(watch(listener_.get(), EPOLLIN, about(About::listener), EPOLL_CTL_ADD));
  FSCCL_ASSIGN(fork_hook_, add_fork_hook(in_child, this));
  return start_service();
}

Status Node::connect(const uint8_t* endpoints, size_t bytes) {
  std::vector<Endpoint> all(static_cast<size_t>(ranks_));
  for (size_t rank = 0; rank < all.size(); rank++) {
    Result<Endpoint> endpoint = decode_endpoint(ByteView(endpoints + rank * bytes, bytes));
    if (!endpoint.ok())
      return fail(FSCCL_ERR_PROTOCOL, "rank {} sent {}: it runs another version", rank,
                  endpoint.status().text());
    all[rank] = endpoint.take();
  }
  const std::lock_guard lock(mutex_);
  endpoints_ = std::move(all);
  return success();
}

// After a fork the connections are the parent's alone. The child replaces its copies of them, so
// that the peers notice the parent's death even if the child lives on.
void Node::in_child(void* self) {
  auto& node = *static_cast<Node*>(self);
  const LeftToParent left;
  left.replace(node.listener_.get());
  for (Link& link : node.links_to_)
    for (const auto* fd : {&link.fd, &link.dialled})
      left.replace(fd->load(std::memory_order_relaxed));
}

// ---- sending

void Node::post(int rank, const mirror::Header& header, mirror::Payload&& payload, bool more) {
  Link& link = links_to_[static_cast<size_t>(rank)];
  if (broken(rank) || link.deaf) return;
  if (link.over) return broke(rank, fmt::format("rank {} has left", rank));
  const Head head = make_head(header, payload.bytes, checksum());
  const bool empty = link.out.empty();
  const int fd = link.fd.load(std::memory_order_relaxed);
  if (!link.out.send(fd, head, std::move(payload), more)) {
    link.deaf = true;
    return;
  }
  if (!empty || link.out.empty()) return;
  writers_.push_back(&link);
  unflushed_.store(true, std::memory_order_relaxed);
  if (fd < 0 && !link.dial) dial(link);
}

// Returns true if nothing is left to send.
bool Node::flush(Link& link) {
  if (!link.out.flush(link.fd.load(std::memory_order_relaxed))) {
    link.deaf = true;
    link.out.clear();
  }
  return link.out.empty();
}

bool Node::flush_all() {
  bool moved = false;
  for (size_t i = 0; i < writers_.size();) {
    Link& link = *writers_[i];
    if (link.fd.load(std::memory_order_relaxed) >= 0) moved |= flush(link);
    if (!link.out.empty() && !broken(link.rank)) {
      i++;
      continue;
    }
    link.out.clear();
    if (std::exchange(link.armed, false) && link.fd >= 0)
      (void)watch(link.fd, EPOLLIN, about(About::link, link.rank), EPOLL_CTL_MOD).ok();
    writers_.erase(writers_.begin() + static_cast<ptrdiff_t>(i));
  }
  return moved;
}

bool Node::flushed() {
  flush_all();
  if (!writers_.empty()) return false;
  unflushed_.store(false, std::memory_order_relaxed);
  return true;
}

// ---- receiving

// Returns true if anything came, or if the link has ended. If there is no memory for the bytes of a
// link, the link is not read any more.
bool Node::read(Link& link) {
  bool moved = true;
  spare(link.rank, [&] { moved = read_some(link); });
  link.dry = !moved;
  return moved;
}

bool Node::read_some(Link& link) {
  std::array<iovec, 2> places;
  const int count = link.in.room(places);
  const int fd = link.fd.load(std::memory_order_relaxed);
  ssize_t got;
  if (count == 1) {
    got = recv(fd, places[0].iov_base, places[0].iov_len, MSG_DONTWAIT);
  } else {
    msghdr message{};
    message.msg_iov = places.data();
    message.msg_iovlen = static_cast<size_t>(count);
    got = recvmsg(fd, &message, MSG_DONTWAIT);
  }
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return false;
  if (got > 0 && link.in.took(static_cast<size_t>(got)) && !broken(link.rank)) return true;
  if (!broken(link.rank))
    finish(link, got > 0 ? ""
                         : fmt::format("the connection to rank {} broke: {}", link.rank,
                                       got == 0 ? "it was closed by the other side"
                                                : std::strerror(errno)));
  close_link(link);
  return true;
}

// `why` is reported unless the peer has said goodbye.
void Node::finish(Link& link, std::string why) {
  link.over = true;
  if (!link.said_goodbye) broke(link.rank, std::move(why));
}

void Node::close_link(Link& link) noexcept {
  link.over = true;
  link.out.clear();
  link.uncount();
  std::vector<std::byte>().swap(link.whole);
  end_dial(link);
  if (const int fd = link.fd.exchange(-1); fd >= 0) {
    unwatch(fd);
    ::close(fd);
  }
}

void Node::Link::uncount() noexcept { node.early_bytes_ -= std::exchange(early, 0); }

std::byte* Node::Link::begin(const Head& head) {
  const mirror::Header& header = head.header;
  goes = Goes::nowhere;
  const bool mirrored =
      header.kind == mirror::MessageKind::bytes || header.kind == mirror::MessageKind::line;
  channel = mirrored ? node.find(header.channel) : nullptr;
  if (!channel) {
    if (mirrored && node.over(rank, header)) return nullptr;
    if (mirrored && !node.can_keep(rank, header, head.bytes)) return nullptr;
    goes = Goes::to_whole;
    whole.resize(head.bytes);
    if (node.counts_early(header)) node.early_bytes_ += early = head.bytes;
    return whole.data();
  }
  if (channel->tag() != header.tag) {
    node.refuse(rank, header);
    return nullptr;
  }
  const int peer = channel->member(rank);
  std::byte* const place = peer < 0 ? nullptr : channel->place(peer, header, head.bytes, true);
  if (place) goes = Goes::to_channel;
  return place;
}

// Decides where the rest of a message goes. If the channel has been closed or has failed since the
// message began, then no more bytes go to the destination of the caller, whose memory may be in
// other use again. The message is then dropped, since its bytes are complete nowhere.
std::byte* Node::Link::go_on(const Head& head, std::byte* place) {
  if (goes != Goes::to_channel) return place;
  const bool there = node.find(head.header.channel) == channel;
  if (there &&
      (!channel->failed() || place == channel->mirror_of(channel->member(rank), head.header)))
    return place;
  goes = Goes::nowhere;
  return nullptr;
}

bool Node::Link::end(const Head& head, std::byte* place) {
  if (head.header.kind == mirror::MessageKind::goodbye) {
    said_goodbye = true;
  } else if (goes == Goes::to_channel && node.find(head.header.channel) == channel) {
    channel->landed(channel->member(rank), head.header, place, head.bytes);
  } else if (goes == Goes::to_whole) {
    uncount();
    node.deliver(rank, head.header, place, head.bytes, false);
    if (whole.capacity() > kKeptBytes) std::vector<std::byte>().swap(whole);
  }
  return !node.broken(rank);
}

void Node::Link::spoilt(const Head& head) {
  const uint32_t meant = seal_of(head, node.checksum());
  if (node.checksum() && head.seal != meant) node.damaged(rank, meant, head.seal);
  node.broke(
      rank,
      fmt::format(
          "rank {} sent what is no message: it runs another version, or the network changed it",
          rank));
}

// ---- moving on

bool Node::advance(int rank) {
  bool moved = !writers_.empty() && flush_all();
  Link* const link = rank < 0 || rank >= ranks_ ? nullptr : &links_to_[static_cast<size_t>(rank)];
  if (link && link->fd.load(std::memory_order_relaxed) >= 0) {
    const bool inside = link->in.inside();
    if (inside || !link->dry) moved |= read(*link);
    if (moved || (inside && ++turns_ % kLookEvery)) return moved;
  }
  return look() || moved;
}

bool Node::look() {
  std::array<epoll_event, kEventsAtOnce> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEventsAtOnce, 0);
  bool moved = false;
  for (int i = 0; i < count; i++) {
    const epoll_event& event = events[static_cast<size_t>(i)];
    const auto number = static_cast<int>(static_cast<uint32_t>(event.data.u64));
    switch (static_cast<About>(event.data.u64 >> 32)) {
      case About::wake: {
        uint64_t calls = 0;
        (void)!::read(wake_.get(), &calls, sizeof calls);
        break;
      }
      case About::listener:
        spare(rank_, [&] { accept_all(); });  // a visitor without memory for it may come again
        break;
      case About::visitor:
        visited(number);
        moved = true;
        break;
      case About::dial:
        spare(number, [&] { dialled(links_to_[static_cast<size_t>(number)]); });
        moved = true;
        break;
      case About::link:
        if (Link& link = links_to_[static_cast<size_t>(number)];
            link.fd.load(std::memory_order_relaxed) >= 0 && (event.events & ~EPOLLOUT))
          moved |= read(link);
        break;
    }
  }
  if (dials_ || !visitors_.empty() || door_closed_until_ns_) keep_time();
  return moved;
}

bool Node::arm() {
  for (Link* link : writers_) {
    if (link->armed || link->fd < 0) continue;
    link->armed =
        watch(link->fd, EPOLLIN | EPOLLOUT, about(About::link, link->rank), EPOLL_CTL_MOD).ok();
  }
  return true;
}

void Node::interrupt() {
  const uint64_t one = 1;
  (void)!write(wake_.get(), &one, sizeof one);
}

}  // namespace fsccl::tcp
