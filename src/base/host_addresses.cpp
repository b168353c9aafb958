// Finds the addresses that a name stands for, and those of this host.
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/socket.h"
#include "base/undo.h"

namespace fsccl {

namespace {

bool is_unspecified(const IpAddress& ip) {
  return ip == IpAddress{} || ip == IpAddress{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 0};
}

struct Own {
  std::string interface_name;
  IpAddress ip = {};
  uint32_t link = 0;  // interface of a link-local address
};

// Returns the addresses of this host on interfaces that are up.
Result<std::vector<Own>> own_addresses() {
  ifaddrs* list = nullptr;
  const StandardNumbersTaken taken;  // the system's functions open descriptors of their own
  if (getifaddrs(&list) != 0) return fail_errno(errno, "listing the addresses of this host");
  const Undo freed([&] { freeifaddrs(list); });
  std::vector<Own> all;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, entry->ifa_addr, address.bytes);
    all.push_back({entry->ifa_name, ip_of(address), link_of(address)});
  }
  return all;
}

// URLs enclose IPv6 addresses in brackets, as in "[::1]". A dot at the end of a name makes it
// absolute.
std::string without_brackets(const std::string& host) {
  const bool enclosed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  return enclosed ? host.substr(1, host.size() - 2) : host;
}

}  // namespace

Result<std::vector<SocketAddress>> resolve(const std::string& host, uint16_t port) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const StandardNumbersTaken taken;
  std::string name = without_brackets(host);
  errno = 0;
  int error = getaddrinfo(name.c_str(), nullptr, &hints, &list);
  // /etc/hosts has names without the dot.
  if (error != 0 && name.size() > 1 && name.back() == '.') {
    name.pop_back();
    error = getaddrinfo(name.c_str(), nullptr, &hints, &list);
  }
  if (error != 0 && (error == EAI_SYSTEM || errno == EMFILE || errno == ENFILE))
    return fail_errno(errno, fmt::format("looking up the host name \"{}\"", host));
  if (error != 0)
    return fail(FSCCL_ERR_CONFIG, "host name \"{}\" is not known: {}", host, gai_strerror(error));
  const Undo freed([&] { freeaddrinfo(list); });
  std::vector<SocketAddress> addresses;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    if (entry->ai_family != AF_INET && entry->ai_family != AF_INET6) continue;
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    addresses.push_back(tcp_address(ip_of(address), port, link_of(address)));
  }
  return addresses;
}

std::vector<IpAddress> local_ips(const std::string& interface_name) {
  const Result<std::vector<Own>> all = own_addresses();
  if (!all.ok()) return {};
  std::vector<IpAddress> outside, loopback;
  for (const Own& own : all.value()) {
    if (!interface_name.empty() && interface_name != own.interface_name) continue;
    if (is_link_local(own.ip)) continue;  // a link-local address is useless without its interface
    (is_loopback(own.ip) ? loopback : outside).push_back(own.ip);
  }
  return outside.empty() ? loopback : outside;
}

Result<bool> is_this_host(const SocketAddress& address) {
  const IpAddress ip = ip_of(address);
  if (is_loopback(ip) || is_unspecified(ip)) return true;
  FSCCL_ASSIGN(const std::vector<Own> all, own_addresses());
  const uint32_t link = link_of(address);
  return std::any_of(all.begin(), all.end(), [&](const Own& own) {
    return own.ip == ip && (link == 0 || own.link == 0 || own.link == link);
  });
}

Result<uint32_t> only_link() {
  FSCCL_ASSIGN(const std::vector<Own> all, own_addresses());
  uint32_t link = 0;
  for (const Own& own : all) {
    if (own.link == 0 || own.link == link) continue;
    if (link != 0) return uint32_t{0};
    link = own.link;
  }
  return uint32_t{link};
}

}  // namespace fsccl
