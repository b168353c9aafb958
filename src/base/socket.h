// Sockets as the library uses them: never blocking, CLOEXEC, without SIGPIPE, every wait with a
// deadline. On one host Unix sockets in the abstract namespace (nothing to leave behind in a file
// system, the peer's user known to the kernel), between hosts TCP, and datagrams for what may be
// lost.
#pragma once
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "base/wait.h"

namespace fsccl {

struct SocketAddress {
  sockaddr_storage storage = {};
  socklen_t bytes = 0;
  bool is_unix() const { return storage.ss_family == AF_UNIX; }
};

using IpAddress = std::array<uint8_t, 16>;  // IPv6, or IPv4 mapped into it

// A name in the abstract namespace; at most 107 bytes.
SocketAddress unix_address(std::string_view name);
// `link`: the interface (its index) by which the address is reached if it is link-local; the
// address says nothing of that.
SocketAddress tcp_address(const IpAddress& ip, uint16_t port, uint32_t link = 0);
// The IP address of a TCP socket address, all zero for a Unix one.
IpAddress ip_of(const SocketAddress& address);
uint16_t port_of(const SocketAddress& address);
// The interface of a link-local address; 0: it has none.
uint32_t link_of(const SocketAddress& address);
bool is_loopback(const IpAddress& ip);
bool is_link_local(const IpAddress& ip);
// "10.0.0.1:29500", "@name" for messages.
std::string describe(const SocketAddress& address);
// All addresses of a host name, in the system's order of preference. An IPv6 address may stand in
// brackets.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port);
// Returns true if packets to this IP address stay on this host (in this network namespace): the
// address belongs to an interface, is a loopback address, or is the address that stands for all.
Result<bool> is_this_host(const SocketAddress& address);
// The interface of this host that has link-local addresses, 0 where none has, or several.
Result<uint32_t> only_link();
// This host's addresses on interfaces that are up, without loopback unless there is nothing else;
// of one interface, if its name is given.
std::vector<IpAddress> local_ips(const std::string& interface_name);

// In use: FSCCL_ERR_INVALID_STATE.
Result<Fd> listen_unix(std::string_view name);
// Takes the name of a listener that cannot accept anybody, for want of descriptors: who connects
// gets FSCCL_ERR_LIMIT.
Result<Fd> refuse_unix(std::string_view name);
Result<Fd> listen_tcp(uint16_t port);  // 0: any; on every interface
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// The next connection, or an invalid descriptor when there is none now. An error is one of
// resources (open files).
Result<Fd> accept_connection(int listener);
// One attempt; waits while a listener has no room for more, until an error of `broken` at the
// latest, which is returned. FSCCL_ERR_LINK: nobody listens, or unreachable.
Result<Fd> connect_to(const SocketAddress& address, Deadline deadline,
                      const BreakCheck& broken = {});
// The same over TCP without waiting: once the descriptor can be written to, connecting is over, and
// finish_connecting says how.
Result<Fd> begin_connecting(const SocketAddress& address);
Status finish_connecting(int fd, const SocketAddress& address);

struct PeerUser {
  uint32_t uid = 0;
  int32_t pid = 0;
};
// Returns the user who made the other end of a Unix socket, as the kernel says.
Result<PeerUser> peer_user(int fd);

enum class Direction { kRead, kWrite };
// Waits until the descriptor can be read from, or written to. FSCCL_ERR_TIMEOUT when the deadline
// passes; an error of `broken` ends the wait within 10 ms. A closed peer counts as ready.
Status wait_ready(int fd, Direction direction, Deadline deadline, const BreakCheck& broken = {});
// Waits until one of the descriptors can be read from, or its peer has closed; negative numbers are
// left out. False when the deadline passes.
Result<bool> wait_readable(const std::vector<int>& fds, Deadline deadline);
// Bytes moved now: 0 when it would block. Receiving: FSCCL_ERR_LINK when the peer has closed.
// Sending: likewise.
Result<size_t> send_some(int fd, const void* data, size_t bytes);
Result<size_t> receive_some(int fd, void* data, size_t bytes);
// Ends both directions, also where another process holds a copy of the socket.
void shut_down(int fd);
void end_sending(int fd);
// Returns true if the other system has everything that was sent, so that closing loses nothing. TCP
// drops bytes that it would have to send again when something arrives that nobody reads, or is
// unread. Between processes of one host the result is always true.
bool arrived(int fd);
// For how long the other system has acknowledged nothing while it owes an answer; what this system
// cannot send counts as sent. 0: it owes nothing.
int64_t owed_for_ns(int fd);
// With a descriptor riding on the first byte. Received ones beyond the first are closed.
Result<size_t> send_with_fd(int fd, const void* data, size_t bytes, int passed);
Result<size_t> receive_with_fd(int fd, void* data, size_t bytes, Fd* passed);

// Datagrams, on every interface, at a port that the system chooses.
Result<Fd> open_datagrams();
// Sends to a TCP address. Returns true if the system took the datagram; nobody says whether it
// arrives.
bool send_datagram(int fd, const SocketAddress& to, const void* data, size_t bytes);
// The size of the next one that came, of which as much as fits is at `data`; negative: none is
// there.
Result<ssize_t> receive_datagram(int fd, void* data, size_t bytes);

}  // namespace fsccl
