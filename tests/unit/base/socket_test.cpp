// Tests sockets: addresses, deadlines, closed peers without SIGPIPE, users, and passed descriptors.
#include "base/socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <cstring>

namespace fsccl {
namespace {

Deadline patience() { return Deadline::in_ms(20'000); }

struct Connected {
  Fd client, server;
};

Connected connect_pair(const std::string& name) {
  const Fd listener = listen_unix(name).take();
  Connected pair;
  pair.client = connect_to(unix_address(name), patience()).take();
  EXPECT_TRUE(wait_ready(listener.get(), Direction::kRead, patience()).ok());
  pair.server = accept_connection(listener.get()).take();
  return pair;
}

std::string unique_name(const char* test) {
  return fmt::format("fsccl-socket-test-{}-{}", test, getpid());
}

TEST(Socket, AddressesAreShownAndTakenApart) {
  EXPECT_EQ(describe(unix_address("name")), "@name");
  const IpAddress ip4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3};
  EXPECT_EQ(describe(tcp_address(ip4, 80)), "10.1.2.3:80");
  EXPECT_EQ(ip_of(tcp_address(ip4, 80)), ip4);
  EXPECT_EQ(port_of(tcp_address(ip4, 80)), 80);
  IpAddress loopback6 = {};
  loopback6[15] = 1;
  EXPECT_EQ(describe(tcp_address(loopback6, 80)), "[::1]:80");
  EXPECT_TRUE(is_loopback(loopback6));
  EXPECT_FALSE(is_loopback(ip4));
  const Result<std::vector<SocketAddress>> resolved = resolve("127.0.0.1", 99);
  ASSERT_TRUE(resolved.ok());
  EXPECT_EQ(describe(resolved.value().at(0)), "127.0.0.1:99");
  EXPECT_EQ(resolve("no-such-host.invalid", 1).status().code(), FSCCL_ERR_CONFIG);
}

TEST(Socket, OneAddressHasManySpellings) {
  const auto shown = [](const char* host) {
    const Result<std::vector<SocketAddress>> found = resolve(host, 7);
    return found.ok() ? describe(found.value().at(0)) : found.status().text();
  };
  for (const char* host : {"::1", "[::1]", "0:0:0:0:0:0:0:1"})
    EXPECT_EQ(shown(host), "[::1]:7") << host;
  for (const char* host : {"fd77::1", "fd77:0:0::1", "FD77::0001", "[fd77::1]"})
    EXPECT_EQ(shown(host), "[fd77::1]:7") << host;
  for (const char* host : {"127.0.0.1", "127.1", "::ffff:127.0.0.1"})
    EXPECT_EQ(shown(host), "127.0.0.1:7") << host;
  for (const char* host : {"fe80::1%lo", "[fe80::1%lo]", "fe80::1%1"})
    EXPECT_EQ(shown(host), "[fe80::1%1]:7") << host;
  EXPECT_EQ(shown("localhost."), shown("localhost"));
}

TEST(Socket, WhatIsThisHost) {
  const auto here = [](const std::string& host) {
    return is_this_host(resolve(host, 7).value().at(0)).value();
  };
  for (const char* host : {"127.0.0.1", "127.8.9.10", "::1", "0.0.0.0", "::"})
    EXPECT_TRUE(here(host)) << host;
  // These addresses are reserved for documents.
  for (const char* host : {"192.0.2.1", "2001:db8::1"}) EXPECT_FALSE(here(host)) << host;
  for (const IpAddress& ip : local_ips("")) EXPECT_TRUE(is_this_host(tcp_address(ip, 7)).value());
  ASSERT_TRUE(only_link().ok());
}

// The system may give a socket the very port that it connects to.
TEST(Socket, AConnectionToItselfIsARefusal) {
  const IpAddress loopback{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  const SocketAddress any = tcp_address(loopback, 0);
  const Fd fd(socket(any.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.bytes), 0);
  const SocketAddress own = tcp_address(loopback, port_of(local_address(fd.get())));
  ASSERT_EQ(connect(fd.get(), reinterpret_cast<const sockaddr*>(&own.storage), own.bytes), 0);
  const Status status = finish_connecting(fd.get(), own);
  EXPECT_EQ(status.code(), FSCCL_ERR_LINK);
  EXPECT_NE(status.text().find("Connection refused"), std::string::npos) << status.text();
}

TEST(Socket, TakenNamesAndMissingListeners) {
  const std::string name = unique_name("taken");
  {
    const Result<Fd> first = listen_unix(name);
    ASSERT_TRUE(first.ok());
    EXPECT_EQ(listen_unix(name).status().code(), FSCCL_ERR_INVALID_STATE);
    // Nobody is connecting, and accept_connection() does not wait.
    EXPECT_FALSE(accept_connection(first.value().get()).value().valid());
  }
  EXPECT_EQ(connect_to(unix_address(name), patience()).status().code(), FSCCL_ERR_LINK);
  const Result<Fd> tcp = listen_tcp(0);
  ASSERT_TRUE(tcp.ok());
  EXPECT_EQ(listen_tcp(port_of(local_address(tcp.value().get()))).status().code(),
            FSCCL_ERR_INVALID_STATE);
}

// With three probes, a run of 32 ranks over a network that lost packets took a silent link for dead
// within four minutes.
TEST(Socket, OnlyManyLostProbesEndASilentLink) {
  const Fd listener = listen_tcp(0).take();
  IpAddress loopback = {};
  loopback[15] = 1;
  const Fd fd =
      connect_to(tcp_address(loopback, port_of(local_address(listener.get()))), patience()).take();
  const auto option = [&](int name) {
    int value = 0;
    socklen_t bytes = sizeof value;
    EXPECT_EQ(getsockopt(fd.get(), IPPROTO_TCP, name, &value, &bytes), 0);
    return value;
  };
  EXPECT_GE(option(TCP_KEEPCNT), 8);
  EXPECT_LE(option(TCP_KEEPIDLE) + option(TCP_KEEPCNT) * option(TCP_KEEPINTVL), 20)
      << "s until a host that is gone is noticed";
}

TEST(Socket, WaitsEndAtTheDeadlineAndClosedPeersAreErrors) {
  Connected pair = connect_pair(unique_name("closed"));
  EXPECT_EQ(wait_ready(pair.client.get(), Direction::kRead, Deadline::in_ms(10)).code(),
            FSCCL_ERR_TIMEOUT);
  char byte = 'x';
  EXPECT_EQ(receive_some(pair.client.get(), &byte, 1).value(), 0u);
  ASSERT_EQ(send_some(pair.server.get(), "y", 1).value(), 1u);
  pair.server.reset();
  // Bytes that came before the end of the connection are still there.
  EXPECT_EQ(receive_some(pair.client.get(), &byte, 1).value(), 1u);
  EXPECT_EQ(byte, 'y');
  EXPECT_EQ(receive_some(pair.client.get(), &byte, 1).status().code(), FSCCL_ERR_LINK);
  // The call must not raise SIGPIPE, which would end the test.
  EXPECT_EQ(send_some(pair.client.get(), "z", 1).status().code(), FSCCL_ERR_LINK);
}

TEST(Socket, TheKernelNamesThePeer) {
  const Connected pair = connect_pair(unique_name("user"));
  const Result<PeerUser> peer = peer_user(pair.server.get());
  ASSERT_TRUE(peer.ok());
  EXPECT_EQ(peer.value().uid, geteuid());
  EXPECT_EQ(peer.value().pid, getpid());
}

TEST(Socket, PassesADescriptor) {
  const Connected pair = connect_pair(unique_name("passed"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Fd reading(ends[0]), writing(ends[1]);
  ASSERT_EQ(send_with_fd(pair.client.get(), "ab", 2, reading.get()).value(), 2u);
  reading.reset();
  char text[8];
  Fd passed;
  ASSERT_EQ(receive_with_fd(pair.server.get(), text, sizeof(text), &passed).value(), 2u);
  ASSERT_TRUE(passed.valid());
  EXPECT_EQ(fcntl(passed.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
  ASSERT_EQ(write(writing.get(), "q", 1), 1);
  EXPECT_EQ(read(passed.get(), text, 1), 1);
  EXPECT_EQ(text[0], 'q');
}

TEST(Socket, ADescriptorThatNobodyAskedForIsClosed) {
  const Connected pair = connect_pair(unique_name("unwanted"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  Fd reading(ends[0]), writing(ends[1]);
  for (int round = 0; round < 2; ++round)
    ASSERT_EQ(send_with_fd(pair.client.get(), "a", 1, writing.get()).value(), 1u);
  writing.reset();
  char text[8];
  ASSERT_EQ(receive_some(pair.server.get(), text, 1).value(), 1u);  // drops the first descriptor
  Fd first(dup(0)), kept;
  // The caller has a descriptor already, so the second one is closed.
  ASSERT_EQ(receive_with_fd(pair.server.get(), text, 1, &first).value(), 1u);
  // The end of file shows that no copy of the writing end is left.
  EXPECT_EQ(read(reading.get(), text, 1), 0);
}

TEST(Socket, DatagramsOfOtherLengthsShowIt) {
  const Fd mine = open_datagrams().take(), other = open_datagrams().take();
  const IpAddress loopback4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  const SocketAddress there = tcp_address(loopback4, port_of(local_address(other.get())));
  uint8_t bytes[8] = {};
  EXPECT_LT(receive_datagram(other.get(), bytes, sizeof bytes).value(), 0);
  ASSERT_TRUE(send_datagram(mine.get(), there, "", 0));
  ASSERT_TRUE(send_datagram(mine.get(), there, "eight by", 8));
  ASSERT_TRUE(send_datagram(mine.get(), there, "more bytes", 10));
  for (const ssize_t sent : {0, 8, 10}) {
    ASSERT_TRUE(wait_ready(other.get(), Direction::kRead, patience()).ok());
    EXPECT_EQ(receive_datagram(other.get(), bytes, sizeof bytes).value(), sent);
  }
  EXPECT_EQ(std::memcmp(bytes, "more byt", 8), 0);
  EXPECT_LT(receive_datagram(other.get(), bytes, sizeof bytes).value(), 0);
}

// A datagram that nobody reads, or that cannot be sent, is lost, and the socket stays usable.
TEST(Socket, DatagramsMayBeLost) {
  const Fd mine = open_datagrams().take();
  IpAddress loopback6 = {};
  loopback6[15] = 1;
  const IpAddress loopback4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
  uint8_t byte = 0;
  for (int i = 0; i < 3; i++) {
    for (const IpAddress& ip : {loopback4, loopback6, IpAddress{0xff}})
      (void)send_datagram(mine.get(), tcp_address(ip, 1), "b", 1);
    EXPECT_LT(receive_datagram(mine.get(), &byte, 1).value(), 0);
  }
  EXPECT_TRUE(send_datagram(mine.get(), tcp_address(loopback4, port_of(local_address(mine.get()))),
                            "b", 1));
  ASSERT_TRUE(wait_ready(mine.get(), Direction::kRead, patience()).ok());
  EXPECT_EQ(receive_datagram(mine.get(), &byte, 1).value(), 1);
}

}  // namespace
}  // namespace fsccl
