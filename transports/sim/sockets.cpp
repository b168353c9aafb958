// Implements base/socket.h over the simulated wires, and close_fd() for the descriptors of their
// sockets. The descriptors of a process have numbers that no real descriptor has; each new one gets
// the lowest free number, as the system does it.
#include "transports/sim/sockets.h"

#include <unistd.h>
#include <cerrno>

#include <algorithm>

namespace fsccl {
namespace sim {
namespace {

constexpr int64_t kFirstRetryNs = kSecond;  // pause after a connection request; it doubles

Result<int> add(SocketPtr socket) {
  Process& process = *socket->owner;
  int fd = kFirstDescriptor;
  while (process.sockets.contains(fd)) fd++;
  process.sockets.emplace(fd, std::move(socket));
  process.most_sockets = std::max(process.most_sockets, process.sockets.size());
  process.call();
  return fd;
}

SocketPtr make(Process& owner, bool by_unix) {
  auto socket = std::make_shared<Socket>();
  socket->owner = &owner;
  socket->by_unix = by_unix;
  socket->acknowledged_ns = owner.world().now();
  return socket;
}

Status closed() { return fail(FSCCL_ERR_LINK, "the connection was closed by the other side"); }

Status refused(const SocketAddress& address, const char* why) {
  return fail(FSCCL_ERR_LINK, "{}: {}", describe(address), why);
}

Result<Fd> listen_at(SocketAddress address) {
  Process& process = Process::current();
  if (process.over()) return refused(address, "the process has ended");
  Wires& wires = Wires::current();
  if (!address.is_unix() && port_of(address) == 0) address = tcp_address({}, wires.next_port());
  if (wires.listener(address, process.host))
    return fail(FSCCL_ERR_INVALID_STATE, "{} is in use", describe(address));
  const SocketPtr socket = make(process, address.is_unix());
  socket->listens = true;
  socket->local = address;
  wires.add(socket);
  return Fd(add(socket).value());
}

// Waits until a packet can reach that host, like a connection request that is sent again and again.
Status reach(int host, Deadline deadline) {
  Process& process = Process::current();
  Wires& wires = Wires::current();
  for (int64_t pause_ns = kFirstRetryNs; wires.open_at(process.host, host) > now_ns();
       pause_ns *= 2) {
    process.wait(nullptr, std::min(deadline.at_ns(), now_ns() + pause_ns));
    if (deadline.passed()) return fail(FSCCL_ERR_TIMEOUT, "no answer before the deadline");
  }
  return success();
}

size_t room_of(const Socket& socket) {
  const size_t room = Wires::current().room();
  return socket.unread < room ? room - socket.unread : 0;
}

Result<size_t> send_piece(int fd, const void* data, size_t bytes, int passed) {
  const SocketPtr socket = socket_of(fd);
  if (socket) socket->owner->about_to_send();
  if (!socket || socket->owner->over()) return closed();
  const SocketPtr other = socket->other.lock();
  if (socket->reset || socket->finished || (socket->by_unix && (!other || other->closed)))
    return closed();
  Wires& wires = Wires::current();
  size_t count = std::min(bytes, room_of(*socket));
  if (count > 1 && passed < 0 && wires.piece()) count = 1 + wires.world().below(count);
  if (count == 0) return size_t{0};
  const auto* const first = static_cast<const uint8_t*>(data);
  Segment segment;
  segment.bytes.assign(first, first + count);
  if (passed >= 0) segment.passed = make_fd([&] { return ::dup(passed); });
  socket->owner->call(count);
  wires.see(*socket, segment.bytes);
  socket->unread += count;
  socket->owed += count;
  wires.carry(socket, std::move(segment));
  return count;
}

}  // namespace

bool writable(const Socket& socket) {
  const SocketPtr other = socket.other.lock();
  return socket.reset || socket.finished || (socket.by_unix && (!other || other->closed)) ||
         room_of(socket) > 0;
}

SocketPtr socket_of(int fd) {
  if (fd < kFirstDescriptor || !Process::any()) return nullptr;
  const auto found = Process::current().sockets.find(fd);
  return found == Process::current().sockets.end() ? nullptr : found->second;
}

// Closes a socket. If it holds unread bytes, the other end learns that they were lost.
void close_socket(const SocketPtr& socket) {
  if (socket->closed) return;
  for (const SocketPtr& one : socket->waiting) {
    one->in.push_back(0);
    close_socket(one);
  }
  socket->closed = true;
  const bool stream = !socket->listens && !socket->datagrams;
  if (stream && !socket->reset && (!socket->in.empty() || !socket->finished)) {
    Segment last;
    last.reset = !socket->in.empty();
    last.end = !last.reset;
    Wires::current().carry(socket, std::move(last));
  }
  socket->in.clear();
  socket->passed.clear();
  socket->waiting.clear();
}

void close_all(Process& process) {
  for (const auto& [fd, socket] : std::exchange(process.sockets, {})) close_socket(socket);
}

IpAddress ip_of_host(int host) {
  return {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, static_cast<uint8_t>(host + 1)};
}

}  // namespace sim

using sim::Process;
using sim::SocketPtr;
using sim::Wires;

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t) {
  return fail(FSCCL_ERR_CONFIG,
              "host name \"{}\" is not known: there are no names in a simulated world", host);
}
Result<bool> is_this_host(const SocketAddress& address) {
  return ip_of(address) == sim::ip_of_host(Process::current().host);
}
Result<uint32_t> only_link() { return uint32_t{0}; }
std::vector<IpAddress> local_ips(const std::string&) {
  return {sim::ip_of_host(Process::current().host)};
}

Result<Fd> listen_unix(std::string_view name) { return sim::listen_at(unix_address(name)); }
Result<Fd> refuse_unix(std::string_view) {
  return fail(FSCCL_ERR_NOT_AVAILABLE, "simulated processes have descriptors enough");
}
Result<Fd> listen_tcp(uint16_t port) { return sim::listen_at(tcp_address({}, port)); }

SocketAddress local_address(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  return socket ? socket->local : SocketAddress();
}
SocketAddress peer_address(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  return socket ? socket->remote : SocketAddress();
}

Result<Fd> accept_connection(int listener) {
  const SocketPtr socket = sim::socket_of(listener);
  if (!socket || socket->waiting.empty()) return Fd();
  SocketPtr accepted = std::move(socket->waiting.front());
  socket->waiting.pop_front();
  return Fd(sim::add(std::move(accepted)).value());
}

Result<Fd> connect_to(const SocketAddress& address, Deadline deadline, const BreakCheck&,
                      int* reason) {
  if (reason) *reason = 0;
  Process& process = Process::current();
  Wires& wires = Wires::current();
  const bool near = address.is_unix() || is_loopback(ip_of(address));
  const int host = near ? process.host : ip_of(address)[15] - 1;
  FSCCL_TRY(sim::reach(host, deadline));
  if (!address.is_unix()) process.sleep(wires.way() + wires.way());
  if (deadline.passed()) return fail(FSCCL_ERR_TIMEOUT, "no answer before the deadline");
  if (process.over()) return sim::refused(address, "the process has ended");
  FSCCL_TRY(sim::reach(host, deadline));
  const SocketPtr listener = wires.listener(address, host);
  if (!listener) {
    if (reason) *reason = ECONNREFUSED;
    return sim::refused(address, "Connection refused");
  }
  const SocketPtr mine = sim::make(process, address.is_unix()),
                  theirs = sim::make(*listener->owner, address.is_unix());
  mine->other = theirs;
  theirs->other = mine;
  mine->other_host = host;
  theirs->other_host = process.host;
  mine->remote = theirs->local = address;
  mine->local = theirs->remote =
      address.is_unix()
          ? unix_address("")
          : tcp_address(near ? ip_of(address) : sim::ip_of_host(process.host), wires.next_port());
  wires.add_stream(mine);
  wires.add_stream(theirs);
  listener->waiting.push_back(theirs);
  listener->owner->serve_soon();
  return Fd(sim::add(mine).value());
}

Result<PeerUser> peer_user(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  const SocketPtr other = socket ? socket->other.lock() : nullptr;
  return PeerUser{geteuid(), other ? other->owner->pid : 0};
}

Status wait_ready(int fd, Direction direction, Deadline deadline, const BreakCheck& broken) {
  SocketPtr socket;
  Process::current().call();
  const auto over = [&] {
    socket = sim::socket_of(fd);
    return !socket || (direction == Direction::kRead ? socket->readable() : sim::writable(*socket));
  };
  const auto pause = [&](int64_t left_ns) {
    Process::current().wait(socket.get(),
                            now_ns() + (broken ? std::min(left_ns, kBreakCheckNs) : left_ns));
  };
  FSCCL_ASSIGN(const bool is_over, wait_unless(broken, over, deadline, pause));
  if (!socket) return sim::closed();
  return is_over ? success() : fail(FSCCL_ERR_TIMEOUT, "no answer before the deadline");
}

Result<size_t> send_some(int fd, const void* data, size_t bytes) {
  return sim::send_piece(fd, data, bytes, -1);
}

Result<size_t> send_with_fd(int fd, const void* data, size_t bytes, int passed) {
  return sim::send_piece(fd, data, bytes, passed);
}

Result<size_t> receive_some(int fd, void* data, size_t bytes) {
  const SocketPtr socket = sim::socket_of(fd);
  if (!socket) return sim::closed();
  if (socket->in.empty()) {
    socket->owner->call();
    if (socket->ended || socket->reset || socket->shut) return sim::closed();
    return size_t{0};
  }
  size_t count = std::min(bytes, socket->in.size());
  if (count > 1 && Wires::current().piece()) count = 1 + Wires::current().world().below(count);
  socket->owner->call(count);
  std::copy_n(socket->in.begin(), count, static_cast<uint8_t*>(data));
  socket->in.erase(socket->in.begin(), socket->in.begin() + static_cast<ptrdiff_t>(count));
  Wires::current().taken(socket, count);
  return count;
}

Result<size_t> receive_with_fd(int fd, void* data, size_t bytes, Fd* passed) {
  const Result<size_t> count = receive_some(fd, data, bytes);
  const SocketPtr socket = sim::socket_of(fd);
  if (!count.ok() || count.value() == 0 || !socket || socket->passed.empty())
    return count.ok() ? Result<size_t>(count.value()) : count.status().clone();
  if (!passed->valid()) *passed = std::move(socket->passed.front());
  socket->passed.pop_front();
  return count.value();
}

void end_sending(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  if (!socket || socket->finished || socket->reset) return;
  socket->finished = true;
  sim::Segment end;
  end.end = true;
  Wires::current().carry(socket, std::move(end));
}

void shut_down(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  if (!socket || socket->shut || socket->reset) return;
  end_sending(fd);
  socket->shut = true;
  socket->owner->notify(socket.get());
  socket->owner->serve_soon();
}

Result<Fd> open_datagrams() {
  Process& process = Process::current();
  const SocketPtr socket = sim::make(process, false);
  socket->datagrams = true;
  socket->local = tcp_address({}, Wires::current().next_port());
  Wires::current().add(socket);
  return Fd(sim::add(socket).value());
}

bool send_datagram(int fd, const SocketAddress& to, const void* data, size_t bytes) {
  const SocketPtr socket = sim::socket_of(fd);
  if (socket) socket->owner->about_to_send();
  if (!socket || socket->owner->over()) return false;
  const auto* const first = static_cast<const uint8_t*>(data);
  const int host = is_loopback(ip_of(to)) ? socket->owner->host : ip_of(to)[15] - 1;
  Wires::current().post(socket->owner->host, host, port_of(to), {first, first + bytes});
  return true;
}

Result<ssize_t> receive_datagram(int fd, void* data, size_t bytes) {
  const SocketPtr socket = sim::socket_of(fd);
  if (!socket) return sim::closed();
  if (socket->mail.empty()) return ssize_t{-1};
  const std::vector<uint8_t> datagram = std::move(socket->mail.front());
  socket->mail.pop_front();
  std::copy_n(datagram.begin(), std::min(bytes, datagram.size()), static_cast<uint8_t*>(data));
  return static_cast<ssize_t>(datagram.size());
}

bool arrived(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  return !socket || socket->by_unix || socket->owed == 0;
}

int64_t owed_for_ns(int fd) {
  const SocketPtr socket = sim::socket_of(fd);
  if (!socket || socket->by_unix || socket->owed == 0) return 0;
  return now_ns() - socket->acknowledged_ns;
}

void close_fd(int fd) {
  if (fd < sim::kFirstDescriptor) {
    ::close(fd);
    return;
  }
  if (!Process::any()) return;
  auto& sockets = Process::current().sockets;
  const auto found = sockets.find(fd);
  if (found == sockets.end()) return;
  const SocketPtr socket = found->second;
  sockets.erase(found);
  Process::current().call();
  sim::close_socket(socket);
}

}  // namespace fsccl
