// The sockets of the library. They never block, have CLOEXEC, raise no SIGPIPE, and every wait has
// a deadline. On one host the library uses Unix sockets in the abstract namespace: they leave
// nothing behind in a file system, and the kernel knows the peer's user. Between hosts it uses TCP,
// and datagrams for what may be lost.
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

// Returns the address of a name in the abstract namespace, which has at most 107 bytes.
SocketAddress unix_address(std::string_view name);
// `link` is the index of the interface by which a link-local address is reached, because the
// address itself does not say it. It is 0 for other addresses.
SocketAddress tcp_address(const IpAddress& ip, uint16_t port, uint32_t link = 0);
// Returns the IP address of a TCP socket address. It is all zero for a Unix socket.
IpAddress ip_of(const SocketAddress& address);
uint16_t port_of(const SocketAddress& address);
// Returns the interface of a link-local address, or 0 if it has none.
uint32_t link_of(const SocketAddress& address);
bool is_loopback(const IpAddress& ip);
bool is_link_local(const IpAddress& ip);
// Returns a text for messages, such as "10.0.0.1:29500" or "@name".
std::string describe(const SocketAddress& address);
// Returns all addresses of a host name, in the system's order of preference. An IPv6 address may be
// in brackets.
Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port);
// Returns true if packets to this IP address stay on this host (in this network namespace): the
// address belongs to an interface, is a loopback address, or is the address that stands for all.
Result<bool> is_this_host(const SocketAddress& address);
// Returns the only interface of this host that has link-local addresses, or 0 if there are none or
// several.
Result<uint32_t> only_link();
// Returns this host's addresses on interfaces that are up, of one interface if its name is given.
// Loopback addresses are among them only if there are no others.
std::vector<IpAddress> local_ips(const std::string& interface_name);

// Returns FSCCL_ERR_INVALID_STATE if the name is in use.
Result<Fd> listen_unix(std::string_view name);
// Takes the name for a listener that lacks the descriptors to accept anybody. Whoever connects to
// it gets FSCCL_ERR_LIMIT.
Result<Fd> refuse_unix(std::string_view name);
Result<Fd> listen_tcp(uint16_t port);  // 0: any; on every interface
SocketAddress local_address(int fd);
SocketAddress peer_address(int fd);

// Returns the next connection, or an invalid descriptor if there is none now. It fails only for
// lack of resources (open files).
Result<Fd> accept_connection(int listener);
// Makes one attempt to connect. It waits while the listener has no room for more connections. An
// error of `broken` ends the wait, and is returned. Returns FSCCL_ERR_LINK if nobody listens or the
// address is unreachable. *reason is then the system's number of the error, and 0 otherwise.
Result<Fd> connect_to(const SocketAddress& address, Deadline deadline,
                      const BreakCheck& broken = {}, int* reason = nullptr);
// Begins to connect over TCP and does not wait. The attempt is over when the descriptor can be
// written to, and finish_connecting() returns its result.
Result<Fd> begin_connecting(const SocketAddress& address);
Status finish_connecting(int fd, const SocketAddress& address, int* reason = nullptr);

struct PeerUser {
  uint32_t uid = 0;
  int32_t pid = 0;
};
// Returns the user who made the other end of a Unix socket, as the kernel says.
Result<PeerUser> peer_user(int fd);

enum class Direction { kRead, kWrite };
// Waits until the descriptor can be read from, or written to. A closed peer counts as ready.
// Returns FSCCL_ERR_TIMEOUT when the deadline passes. An error of `broken` ends the wait within 10
// ms.
Status wait_ready(int fd, Direction direction, Deadline deadline, const BreakCheck& broken = {});
// Waits until one of the descriptors can be read from, or its peer has closed. Negative numbers in
// the list are ignored. Returns false when the deadline passes.
Result<bool> wait_readable(const std::vector<int>& fds, Deadline deadline);
// Both functions return the number of bytes moved now, which is 0 if the call would block, and
// FSCCL_ERR_LINK if the peer has closed.
Result<size_t> send_some(int fd, const void* data, size_t bytes);
Result<size_t> receive_some(int fd, void* data, size_t bytes);
// Ends both directions, even if another process holds a copy of the socket.
void shut_down(int fd);
void end_sending(int fd);
// Returns true if the other system has received everything that was sent, so that closing loses
// nothing. When data arrives that nobody reads, or that is unread at the close, TCP drops bytes
// that it would have to send again. Between processes of one host the result is always true.
bool arrived(int fd);
// Returns for how long the other system has acknowledged nothing although bytes are unacknowledged,
// or 0 if none are. Bytes that this system cannot send count as sent.
int64_t owed_for_ns(int fd);
// The descriptor travels with the first byte. If several descriptors arrive, all but the first are
// closed.
Result<size_t> send_with_fd(int fd, const void* data, size_t bytes, int passed);
Result<size_t> receive_with_fd(int fd, void* data, size_t bytes, Fd* passed);

// Opens a socket for datagrams on every interface, at a port that the system chooses.
Result<Fd> open_datagrams();
// Sends a datagram to a TCP address. Returns true if the system took the datagram; whether it
// arrives is unknown.
bool send_datagram(int fd, const SocketAddress& to, const void* data, size_t bytes);
// Copies as much of the next datagram as fits to `data`. Returns the datagram's size, or a negative
// number if none has arrived.
Result<ssize_t> receive_datagram(int fd, void* data, size_t bytes);

}  // namespace fsccl
