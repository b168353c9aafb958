#include "base/socket.h"

#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace fsccl {

namespace {

constexpr int kBacklog = 4096;  // the kernel reduces it to its own limit
// space for unread heartbeats, of which there are some dozens; a flood of datagrams takes no more
constexpr int kDatagramRoom = 32 << 10;
// time between two attempts to connect to a listener whose backlog is full
constexpr int64_t kCrowdedNs = 1'000'000;
constexpr IpAddress kAnyIp4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};

const sockaddr* generic(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

bool peer_gone(int error_number) {
  return error_number == EPIPE || error_number == ECONNRESET || error_number == ETIMEDOUT ||
         error_number == EHOSTUNREACH;
}
bool would_block(int error_number) { return error_number == EAGAIN || error_number == EWOULDBLOCK; }

Status link_closed() { return fail(FSCCL_ERR_LINK, "the connection was closed by the other side"); }

// Repeats a call that was interrupted. Such a call has done nothing, and its caller may not call
// again.
template <class Call>
ssize_t uninterrupted(Call call) {
  ssize_t count;
  do count = call();
  while (count < 0 && errno == EINTR);
  return count;
}

Result<size_t> moved(ssize_t count, bool zero_is_end, const char* call) {
  const int error_number = errno;
  if (count > 0 || (count == 0 && !zero_is_end)) return static_cast<size_t>(count);
  if (count == 0 || peer_gone(error_number)) return link_closed();
  if (would_block(error_number)) return size_t{0};
  return fail_errno(error_number, call);
}

// Sets the options of a TCP socket. A host that vanishes without a goodbye is noticed within about
// 20 s, also on a silent link. The number of probes is large: with three probes, a job with some
// hundred links over a network that loses packets soon lost a silent link.
void prepare_tcp(int fd) {
  const int on = 1, idle_s = 10, interval_s = 1, probes = 10, user_timeout_ms = 20'000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof(idle_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof(interval_s));
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof(probes));
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &user_timeout_ms, sizeof(user_timeout_ms));
}

// Returns a socket that can be bound to the address. An IPv6 socket also takes IPv4.
Fd socket_for(const SocketAddress& address, int type) {
  Fd fd = make_fd(
      [&] { return socket(address.storage.ss_family, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  const int off = 0;
  if (fd.valid() && address.storage.ss_family == AF_INET6)
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  return fd;
}

Result<Fd> listen_at(const SocketAddress& address) {
  Fd fd = socket_for(address, SOCK_STREAM);
  if (!fd.valid()) return fail_errno(errno, "socket");
  const int on = 1;
  if (!address.is_unix()) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(fd.get(), generic(address), address.bytes) != 0 || listen(fd.get(), kBacklog) != 0) {
    if (errno == EADDRINUSE)
      return fail(FSCCL_ERR_INVALID_STATE, "{} is in use", describe(address));
    return fail_errno(errno, fmt::format("listening at {}", describe(address)));
  }
  return fd;
}

// Returns whether refuse_unix() holds the name; keeps errno.
bool is_refused(const SocketAddress& address) {
  const int error_number = errno;
  bool refused = false;
  if (address.is_unix()) {
    const Fd probe = socket_for(address, SOCK_DGRAM);
    refused = probe.valid() && connect(probe.get(), generic(address), address.bytes) == 0;
  }
  errno = error_number;
  return refused;
}

}  // namespace

Result<Fd> listen_unix(std::string_view name) { return listen_at(unix_address(name)); }

// Marks the name as refused by binding a datagram socket to it, which takes one descriptor.
// Datagram sockets and stream sockets have separate names, so is_refused() finds the mark and no
// connection does.
Result<Fd> refuse_unix(std::string_view name) {
  const SocketAddress address = unix_address(name);
  Fd fd = socket_for(address, SOCK_DGRAM);
  if (!fd.valid()) return fail_errno(errno, "socket");
  if (bind(fd.get(), generic(address), address.bytes) != 0)
    return fail_errno(errno, fmt::format("binding {}", describe(address)));
  return fd;
}

Result<Fd> listen_tcp(uint16_t port) {
  Result<Fd> both = listen_at(tcp_address(IpAddress{}, port));
  if (both.ok() || both.status().code() == FSCCL_ERR_INVALID_STATE) return both;
  return listen_at(tcp_address(kAnyIp4, port));  // for a system without IPv6
}

SocketAddress local_address(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
    address.bytes = 0;
  return address;
}

SocketAddress peer_address(int fd) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
    address.bytes = 0;
  return address;
}

Result<Fd> accept_connection(int listener) {
  Fd fd = make_fd([&] {
    return uninterrupted(
        [&] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
  });
  if (!fd.valid()) {
    const bool resources =
        errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
    if (resources) return fail_errno(errno, "accept");
    return fd;  // no connection is waiting, or its sender has closed it already
  }
  if (!local_address(fd.get()).is_unix()) prepare_tcp(fd.get());
  return fd;
}

Result<Fd> connect_to(const SocketAddress& address, Deadline deadline, const BreakCheck& broken,
                      int* reason) {
  if (reason) *reason = 0;
  Fd fd = socket_for(address, SOCK_STREAM);
  if (!fd.valid()) return fail_errno(errno, "socket");
  if (!address.is_unix()) prepare_tcp(fd.get());
  int error_number = 0;
  const auto begun = [&] {
    error_number = connect(fd.get(), generic(address), address.bytes) == 0 ? 0 : errno;
    // A Unix listener's backlog is full, and no event says when it has space again.
    return error_number != EAGAIN;
  };
  FSCCL_ASSIGN(const bool in_time, wait_unless(broken, begun, deadline, Naps(kCrowdedNs)));
  if (!in_time) return fail(FSCCL_ERR_TIMEOUT, "{}: too many others connect", describe(address));
  if (error_number == ECONNREFUSED && is_refused(address))
    return fail(FSCCL_ERR_LIMIT,
                "the process that should listen at {} may open too few files for that: raise the "
                "limit of its process (ulimit -n); "
                "its own error has the numbers",
                describe(address));
  if (error_number != 0 && error_number != EINPROGRESS && error_number != EINTR) {
    if (reason) *reason = error_number;
    return fail(FSCCL_ERR_LINK, "{}: {}", describe(address), std::strerror(error_number));
  }
  if (error_number != 0) FSCCL_TRY(wait_ready(fd.get(), Direction::kWrite, deadline, broken));
  FSCCL_TRY(finish_connecting(fd.get(), address, reason));
  return fd;
}

Result<Fd> begin_connecting(const SocketAddress& address) {
  Fd fd = socket_for(address, SOCK_STREAM);
  if (!fd.valid()) return fail_errno(errno, "socket");
  prepare_tcp(fd.get());
  if (connect(fd.get(), generic(address), address.bytes) != 0 && errno != EINPROGRESS &&
      errno != EINTR)
    return fail(FSCCL_ERR_LINK, "{}: {}", describe(address), std::strerror(errno));
  return fd;
}

Status finish_connecting(int fd, const SocketAddress& address, int* reason) {
  int error_number = 0;
  socklen_t bytes = sizeof(error_number);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error_number, &bytes);
  // The system may have given the socket the very port, at which nobody listens, that it connects
  // to. It is then connected to itself.
  if (const SocketAddress own = local_address(fd), peer = peer_address(fd);
      error_number == 0 && port_of(own) != 0 && port_of(own) == port_of(peer) &&
      ip_of(own) == ip_of(peer))
    error_number = ECONNREFUSED;
  if (reason) *reason = error_number;
  return error_number == 0
             ? success()
             : fail(FSCCL_ERR_LINK, "{}: {}", describe(address), std::strerror(error_number));
}

Result<PeerUser> peer_user(int fd) {
  ucred credentials = {};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0)
    return fail_errno(errno, "SO_PEERCRED");
  return PeerUser{credentials.uid, credentials.pid};
}

Status wait_ready(int fd, Direction direction, Deadline deadline, const BreakCheck& broken) {
  pollfd entry = {fd, static_cast<short>(direction == Direction::kRead ? POLLIN : POLLOUT), 0};
  int ready = 0, error_number = 0;
  const auto poll_for = [&](int64_t ns) {
    const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
    ready = ppoll(&entry, 1, &time, nullptr);
    error_number = ready < 0 && errno != EINTR ? errno : 0;
    return ready > 0 || error_number;
  };
  const auto pause = [&](int64_t left_ns) {
    (void)poll_for(broken ? std::min(left_ns, kBreakCheckNs) : left_ns);
  };
  const auto over = [&] { return ready > 0 || error_number || poll_for(0); };
  FSCCL_ASSIGN(const bool is_over, wait_unless(broken, over, deadline, pause));
  if (error_number) return fail_errno(error_number, "poll");
  return is_over ? success() : fail(FSCCL_ERR_TIMEOUT, "no answer before the deadline");
}

Result<bool> wait_readable(const std::vector<int>& fds, Deadline deadline) {
  std::vector<pollfd> entries;
  for (const int fd : fds) entries.push_back({fd, POLLIN, 0});
  int ready = 0, error_number = 0;
  const auto poll_for = [&](int64_t ns) {
    const timespec time = {ns / 1'000'000'000, ns % 1'000'000'000};
    ready = ppoll(entries.data(), entries.size(), &time, nullptr);
    error_number = ready < 0 && errno != EINTR ? errno : 0;
    return ready > 0 || error_number;
  };
  const auto over = [&] { return ready > 0 || error_number || poll_for(0); };
  const WaitEnd end = wait_until(over, deadline, kNothingBreaks, poll_for);
  if (error_number) return fail_errno(error_number, "poll");
  return end == WaitEnd::held;
}

Result<size_t> send_some(int fd, const void* data, size_t bytes) {
  return moved(uninterrupted([&] { return send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT); }),
               false, "send");
}

Result<size_t> receive_some(int fd, void* data, size_t bytes) {
  return moved(uninterrupted([&] { return recv(fd, data, bytes, MSG_DONTWAIT); }), true, "recv");
}

void shut_down(int fd) { shutdown(fd, SHUT_RDWR); }
void end_sending(int fd) { shutdown(fd, SHUT_WR); }

bool arrived(int fd) {
  int queued = 0;
  return local_address(fd).is_unix() || ioctl(fd, SIOCOUTQ, &queued) != 0 || queued == 0;
}

int64_t owed_for_ns(int fd) {
  int queued = 0;
  tcp_info info = {};
  socklen_t bytes = sizeof(info);
  if (ioctl(fd, SIOCOUTQ, &queued) != 0 || queued == 0) return 0;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0 ||
      bytes < offsetof(tcp_info, tcpi_pmtu))
    return 0;
  return int64_t{info.tcpi_last_ack_recv} * 1'000'000;
}

Result<size_t> send_with_fd(int fd, const void* data, size_t bytes, int passed) {
  iovec vector = {const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &passed, sizeof(int));
  return moved(uninterrupted([&] { return sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT); }),
               false, "sendmsg");
}

Result<size_t> receive_with_fd(int fd, void* data, size_t bytes, Fd* passed) {
  iovec vector = {data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(16 * sizeof(int))] = {};
  msghdr message = {};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const StandardNumbersTaken taken;  // received descriptors get higher numbers
  const ssize_t count =
      uninterrupted([&] { return recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC); });
  const int error_number = errno;
  for (cmsghdr* header = count < 0 ? nullptr : CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t descriptors = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < descriptors; ++i) {
      int received = -1;
      std::memcpy(&received, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      Fd owned(received);
      if (!passed->valid()) *passed = std::move(owned);
    }
  }
  errno = error_number;
  return moved(count, true, "recvmsg");
}

Result<Fd> open_datagrams() {
  const int bytes = kDatagramRoom;
  for (const IpAddress& any : {IpAddress{}, kAnyIp4}) {  // the second for systems without IPv6
    const SocketAddress address = tcp_address(any, 0);
    Fd fd = socket_for(address, SOCK_DGRAM);
    if (!fd.valid()) continue;
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &bytes, sizeof(bytes));
    if (bind(fd.get(), generic(address), address.bytes) == 0) return fd;
  }
  return fail_errno(errno, "a socket for datagrams");
}

bool send_datagram(int fd, const SocketAddress& to, const void* data, size_t bytes) {
  SocketAddress address = to;
  if (local_address(fd).storage.ss_family == AF_INET6 && to.storage.ss_family == AF_INET) {
    address = tcp_address(IpAddress{}, port_of(to));  // the form in which an IPv6 socket takes it
    const IpAddress ip = ip_of(to);
    std::memcpy(&reinterpret_cast<sockaddr_in6*>(&address.storage)->sin6_addr, ip.data(),
                ip.size());
  }
  return uninterrupted([&] {
           return sendto(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT, generic(address),
                         address.bytes);
         }) >= 0;
}

Result<ssize_t> receive_datagram(int fd, void* data, size_t bytes) {
  const ssize_t count =
      uninterrupted([&] { return recv(fd, data, bytes, MSG_DONTWAIT | MSG_TRUNC); });
  if (count >= 0 || would_block(errno)) return count;
  return fail_errno(errno, "recv of a datagram");
}

}  // namespace fsccl
