// Makes addresses of sockets, takes them apart, and describes them.
#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "base/socket.h"

namespace fsccl {

namespace {

constexpr uint8_t kMappedPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_mapped_ip4(const IpAddress& ip) {
  return std::memcmp(ip.data(), kMappedPrefix, sizeof(kMappedPrefix)) == 0;
}

IpAddress map_ip4(const in_addr& ip4) {
  IpAddress ip;
  std::memcpy(ip.data(), kMappedPrefix, sizeof(kMappedPrefix));
  std::memcpy(ip.data() + sizeof(kMappedPrefix), &ip4, sizeof(ip4));
  return ip;
}

}  // namespace

SocketAddress unix_address(std::string_view name) {
  SocketAddress address;
  auto* const un = reinterpret_cast<sockaddr_un*>(&address.storage);
  un->sun_family = AF_UNIX;
  const size_t bytes = std::min(name.size(), sizeof(un->sun_path) - 1);
  std::memcpy(un->sun_path + 1, name.data(),
              bytes);  // the leading zero byte marks the abstract namespace
  address.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + bytes);
  return address;
}

SocketAddress tcp_address(const IpAddress& ip, uint16_t port, uint32_t link) {
  SocketAddress address;
  if (is_mapped_ip4(ip)) {
    auto* const in4 = reinterpret_cast<sockaddr_in*>(&address.storage);
    in4->sin_family = AF_INET;
    in4->sin_port = htons(port);
    std::memcpy(&in4->sin_addr, ip.data() + sizeof(kMappedPrefix), sizeof(in4->sin_addr));
    address.bytes = sizeof(sockaddr_in);
  } else {
    auto* const in6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    std::memcpy(&in6->sin6_addr, ip.data(), ip.size());
    if (is_link_local(ip)) in6->sin6_scope_id = link;
    address.bytes = sizeof(sockaddr_in6);
  }
  return address;
}

IpAddress ip_of(const SocketAddress& address) {
  IpAddress ip = {};
  if (address.storage.ss_family == AF_INET)
    return map_ip4(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr);
  if (address.storage.ss_family == AF_INET6)
    std::memcpy(ip.data(), &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr,
                ip.size());
  return ip;
}

uint16_t port_of(const SocketAddress& address) {
  if (address.storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_port);
  if (address.storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_port);
  return 0;
}

uint32_t link_of(const SocketAddress& address) {
  if (!is_link_local(ip_of(address))) return 0;
  return reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_scope_id;
}

bool is_link_local(const IpAddress& ip) { return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80; }

bool is_loopback(const IpAddress& ip) {
  if (is_mapped_ip4(ip)) return ip[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(reinterpret_cast<const in6_addr*>(ip.data())) != 0;
}

std::string describe(const SocketAddress& address) {
  if (address.is_unix()) {
    const auto* const un = reinterpret_cast<const sockaddr_un*>(&address.storage);
    const size_t head = offsetof(sockaddr_un, sun_path) + 1;
    return fmt::format("@{}", std::string_view(un->sun_path + 1,
                                               address.bytes <= head ? 0 : address.bytes - head));
  }
  char text[INET6_ADDRSTRLEN] = "?";
  const IpAddress ip = ip_of(address);
  if (is_mapped_ip4(ip)) {
    inet_ntop(AF_INET, ip.data() + sizeof(kMappedPrefix), text, sizeof(text));
    return fmt::format("{}:{}", text, port_of(address));
  }
  inet_ntop(AF_INET6, ip.data(), text, sizeof(text));
  const uint32_t link = link_of(address);
  return fmt::format("[{}{}]:{}", text, link == 0 ? "" : fmt::format("%{}", link),
                     port_of(address));
}

}  // namespace fsccl
