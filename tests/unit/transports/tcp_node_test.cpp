// Tests which connections a node's listener accepts, what happens to others, and how links end.
#include "transports/tcp/node.h"

#include <gmock/gmock.h>

#include <array>
#include <cstring>

#include "transports/mirror/channel.h"

namespace fsccl::tcp {
namespace {

constexpr int kRanks = 3;
constexpr int64_t kLongMs = 60'000;         // tests fail if they wait longer for an answer
constexpr size_t kEarlyBytes = 256u << 20;  // bytes that a node keeps for channels not yet open

// A node of rank 1 of a job, with a channel of ranks 0 and 1. The test plays rank 0, or a stranger.
class TcpNodeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<Node>> made =
        Node::join({sizeof(fsccl_transport_job_t), 1, kRanks, key_.data(), 0});
    ASSERT_TRUE(made.ok()) << made.status().text();
    node_ = std::move(made.value());
    const Result<Endpoint> endpoint = decode_endpoint(ByteView(node_->endpoint()));
    ASSERT_TRUE(endpoint.ok());
    address_ = tcp_address(loopback(), endpoint.value().port);
    reach_others_at(nobody_port());
    mirror::Channel::Setup setup;
    setup.node = node_.get();
    setup.meeting = setup.tag = 7;
    setup.rank = 1;
    setup.members = {0, 1};
    setup.board = std::make_shared<mirror::Board>();
    Result<std::unique_ptr<mirror::Channel>> opened = mirror::Channel::open(std::move(setup));
    ASSERT_TRUE(opened.ok());
    channel_ = std::move(opened.value());
  }
  void reach_others_at(uint16_t port) {
    std::vector<uint8_t> endpoints(kRanks * kAddressBytes);
    const Bytes endpoint = encode(Endpoint{port, {loopback()}});
    for (size_t rank = 0; rank < kRanks; rank++)
      std::memcpy(&endpoints[rank * kAddressBytes], endpoint.data(), endpoint.size());
    ASSERT_TRUE(node_->connect(endpoints.data(), kAddressBytes).ok());
  }
  static IpAddress loopback() {
    IpAddress ip{};
    ip[10] = ip[11] = 0xff;
    ip[12] = 127;
    ip[15] = 1;
    return ip;
  }
  static Fd bound() {
    Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress any = tcp_address(loopback(), 0);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any.storage), any.bytes), 0);
    return fd;
  }
  // Returns a port that is bound, and at which nobody listens.
  uint16_t nobody_port() {
    nobody_ = bound();
    return port_of(local_address(nobody_.get()));
  }
  // Makes the node call rank 2.
  void call_rank_2() const {
    mirror::Header header{};
    header.kind = mirror::MessageKind::left;
    const std::lock_guard lock(node_->mutex());
    node_->send(2, header, {});
  }
  template <class There>
  void await(const There& there) const {
    const Deadline deadline = Deadline::in_ms(kLongMs);
    while (!there() && !deadline.passed()) node_->poll(-1);
    ASSERT_TRUE(there());
  }
  // Expects the message of call_rank_2() on the connection.
  void expect_message(int fd) const {
    Head head{};
    size_t have = 0;
    await([&] {
      const Result<size_t> got =
          receive_some(fd, reinterpret_cast<uint8_t*>(&head) + have, sizeof head - have);
      EXPECT_TRUE(got.ok());
      have += got.ok() ? got.value() : sizeof head;
      return have == sizeof head;
    });
    EXPECT_EQ(head.header.kind, mirror::MessageKind::left);
  }

  Fd knock() {
    Result<Fd> fd = connect_to(address_, Deadline::in_ms(kLongMs));
    EXPECT_TRUE(fd.ok()) << fd.status().text();
    return fd.take();
  }
  Credentials credentials(uint8_t first = 5) const {
    std::array<uint8_t, 32> key{first};
    return {AuthMode::kSecret, SecretKey(ByteView(key)), {}};
  }
  void put(int fd, ByteView bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      node_->poll(-1);
      const Result<size_t> now = send_some(fd, bytes.data() + sent, bytes.size() - sent);
      ASSERT_TRUE(now.ok());
      sent += now.value();
    }
  }
  // Returns true if the node closes the connection, and false if it answers.
  bool turned_away(int fd) const {
    const Deadline deadline = Deadline::in_ms(kLongMs);
    while (!deadline.passed()) {
      node_->poll(-1);
      uint8_t byte;
      const Result<size_t> got = receive_some(fd, &byte, 1);
      if (!got.ok()) return true;
      if (got.value()) return false;
    }
    return false;
  }
  // Connects to the node as rank `as` with this key, meaning to reach rank `to`.
  Result<Fd> call(int as = 0, uint8_t key = 5, int to = 1) {
    Caller caller(knock(), address_, credentials(key), as, to, kRanks);
    const Deadline deadline = Deadline::in_ms(kLongMs);
    while (!deadline.passed()) {
      node_->poll(-1);
      Result<bool> through = caller.go_on();
      if (!through.ok()) return through.take_status();
      if (through.value()) return caller.take();
    }
    return fail(FSCCL_ERR_TIMEOUT, "nobody answers");
  }
  Bytes message(mirror::MessageKind kind, uint32_t tick, size_t bytes) const {
    mirror::Header header{};
    header.channel = header.tag = 7;
    header.kind = kind;
    header.line.tick = tick;
    header.sent = bytes;
    const Head head = make_head(header, bytes, false);
    Bytes made(sizeof head + bytes, uint8_t{9});
    std::memcpy(made.data(), &head, sizeof head);
    return made;
  }
  // Returns the head of a message for a channel that the node has not opened yet. Its bytes come
  // later.
  static Bytes early_head(size_t bytes) {
    mirror::Header header{};
    header.channel = header.tag = 8;
    header.kind = mirror::MessageKind::line;
    const Head head = make_head(header, bytes, false);
    const auto* const first = reinterpret_cast<const uint8_t*>(&head);
    return Bytes(first, first + sizeof head);
  }
  bool comes(uint32_t tick) const {
    const Deadline deadline = Deadline::in_ms(kLongMs);
    while (!deadline.passed())
      if (channel_->poll(0, tick)) return true;
    return false;
  }
  const fsccl_transport_failure_t* fails() const {
    const Deadline deadline = Deadline::in_ms(kLongMs);
    while (!deadline.passed())
      if (const auto* failure = channel_->failure()) return failure;
    return nullptr;
  }

  void rank_0_is_heard() {
    Result<Fd> link = call();
    ASSERT_TRUE(link.ok()) << link.status().text();
    put(link.value().get(), message(mirror::MessageKind::line, 1, 5000));
    EXPECT_TRUE(comes(1));
  }

  static constexpr size_t kAddressBytes = 512;
  std::array<uint8_t, 32> key_{5};
  Fd nobody_;
  SocketAddress address_;
  std::unique_ptr<Node> node_;
  std::unique_ptr<mirror::Channel> channel_;
};

TEST_F(TcpNodeTest, ARankOfTheJobIsHeard) { rank_0_is_heard(); }

TEST_F(TcpNodeTest, WhoDoesNotKnowTheSecretIsNot) {
  EXPECT_EQ(call(0, 6).status().code(), FSCCL_ERR_AUTH);     // the node proves itself first
  EXPECT_EQ(call(0, 5, 2).status().code(), FSCCL_ERR_AUTH);  // the caller wants rank 2
  // This client ignores that the node's proof is wrong, and goes on.
  const Fd fd = knock();
  HandshakeClient client(credentials(6), Purpose::kLink, 0, 0, kRanks, Nonce{1});
  put(fd.get(), encode_frame(FrameType::kHello, client.hello()));
  Bytes challenge(kFrameHeaderBytes + kChallengeBytes);
  for (size_t have = 0; have < challenge.size();) {
    node_->poll(-1);
    have += receive_some(fd.get(), challenge.data() + have, challenge.size() - have).take();
  }
  put(fd.get(), encode_frame(FrameType::kProof, Bytes(kProofBytes, 1)));
  EXPECT_TRUE(turned_away(fd.get()));
}

TEST_F(TcpNodeTest, ARecordedProofIsOfNoUse) {
  HandshakeClient client(credentials(), Purpose::kLink, 0, 0, kRanks, Nonce{1});
  const Bytes hello = encode_frame(FrameType::kHello, client.hello());
  Bytes proof;
  for (const bool again : {false, true}) {
    const Fd fd = knock();
    put(fd.get(), hello);
    Bytes challenge(kFrameHeaderBytes + kChallengeBytes);
    for (size_t have = 0; have < challenge.size();) {
      node_->poll(-1);
      have += receive_some(fd.get(), challenge.data() + have, challenge.size() - have).take();
    }
    if (!again) {
      Result<Bytes> answer = client.answer(ByteView(challenge).subspan(kFrameHeaderBytes));
      ASSERT_TRUE(answer.ok());
      proof = encode_frame(FrameType::kProof, answer.value());
    }
    put(fd.get(), proof);
    EXPECT_EQ(turned_away(fd.get()), again);
  }
}

TEST_F(TcpNodeTest, GarbageIsTurnedAwayAndHarmsNobody) {
  std::vector<Bytes> all{Bytes(4096, 0xff), Bytes(300, 0),
                         encode_frame(FrameType::kProof, Bytes(kProofBytes)),
                         encode_frame(FrameType::kHello, Bytes(kHelloBytes, 0xff)),
                         encode_frame(FrameType::kHello, Bytes(kHelloBytes - 1))};
  HandshakeClient other_size(credentials(), Purpose::kLink, 0, 0, kRanks + 1, Nonce{1});
  all.push_back(encode_frame(FrameType::kHello, other_size.hello()));
  HandshakeClient beyond(credentials(), Purpose::kLink, 0, kRanks, kRanks, Nonce{1});
  all.push_back(encode_frame(FrameType::kHello, beyond.hello()));
  HandshakeClient itself(credentials(), Purpose::kLink, 0, 1, kRanks, Nonce{1});
  all.push_back(encode_frame(FrameType::kHello, itself.hello()));
  for (const Bytes& garbage : all) {
    const Fd fd = knock();
    (void)send_some(fd.get(), garbage.data(), garbage.size()).ok();
    EXPECT_TRUE(turned_away(fd.get()));
  }
  EXPECT_EQ(node_->visitors(), 0u);
  rank_0_is_heard();
}

TEST_F(TcpNodeTest, TheSilentAreFewAndKeepNobodyOut) {
  std::vector<Fd> silent;
  for (int i = 0; i < 600; i++) {
    silent.push_back(knock());
    if (i % 3 == 0) (void)send_some(silent.back().get(), "FSCL", 4).ok();  // half a message
    node_->poll(-1);
    EXPECT_LE(node_->visitors(), 256u);
  }
  rank_0_is_heard();
}

TEST_F(TcpNodeTest, ASecondLinkOfARankIsRefused) {
  Result<Fd> first = call();
  ASSERT_TRUE(first.ok());
  EXPECT_FALSE(call().ok());
  put(first.value().get(), message(mirror::MessageKind::line, 1, 0));
  EXPECT_TRUE(comes(1));
}

// A call that is not answered must not keep the called rank from calling back. A system may drop
// packets to one of its addresses, and a path may work in one direction only.
TEST_F(TcpNodeTest, ACallThatNobodyAnswersKeepsNobodyOut) {
  const Fd silent = bound();
  ASSERT_EQ(listen(silent.get(), 0), 0);
  const SocketAddress address = local_address(silent.get());
  // One connection fills the queue of the socket, and the system drops all further ones.
  const Result<Fd> filler = connect_to(address, Deadline::in_ms(kLongMs));
  ASSERT_TRUE(filler.ok()) << filler.status().text();
  reach_others_at(port_of(address));
  call_rank_2();
  Result<Fd> link = call(2);
  ASSERT_TRUE(link.ok()) << link.status().text();
  expect_message(link.value().get());
}

// The test plays rank 2, which answers a call of the node up to some point, and calls the node
// itself.
class TcpCrossingTest : public TcpNodeTest {
 protected:
  void SetUp() override {
    TcpNodeTest::SetUp();
    listener_ = bound();
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    reach_others_at(port_of(local_address(listener_.get())));
    call_rank_2();
    Fd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    ASSERT_TRUE(fd.valid());
    visitor_ = std::make_unique<Visitor>(std::move(fd), credentials(), 2, INT64_MAX);
  }
  bool proved() {
    const Result<std::optional<int>> who = visitor_->go_on(kRanks);
    EXPECT_TRUE(who.ok()) << who.status().text();
    return !who.ok() || who.value().has_value();
  }
  Fd listener_;
  std::unique_ptr<Visitor> visitor_;
};

TEST_F(TcpCrossingTest, TheCallOfTheLowerRankCountsFromItsProofOn) {
  await([&] { return proved(); });
  EXPECT_FALSE(call(2).ok());
  ASSERT_TRUE(visitor_->welcome().ok());
  expect_message(visitor_->fd());
}

TEST_F(TcpCrossingTest, TheCallOfTheHigherRankCountsBefore) {
  Result<Fd> link = call(2);
  ASSERT_TRUE(link.ok()) << link.status().text();
  expect_message(link.value().get());
  EXPECT_FALSE(visitor_->go_on(kRanks).ok()) << "the node has not given its own call up";
}

TEST_F(TcpNodeTest, WhatIsNoMessageEndsTheLink) {
  Result<Fd> link = call();
  ASSERT_TRUE(link.ok());
  put(link.value().get(), Bytes(sizeof(Head), 0xff));
  const fsccl_transport_failure_t* failure = fails();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, FSCCL_ERR_LINK);
  EXPECT_EQ(failure->peer, 0);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("rank 0 sent what is no message"));
}

// The node ends the link when a head announces too many bytes, and takes no memory for them.
TEST_F(TcpNodeTest, TooManyEarlyBytesEndTheLinkBeforeTheyCome) {
  Result<Fd> link = call();
  ASSERT_TRUE(link.ok());
  put(link.value().get(), early_head(kEarlyBytes + 1));
  const fsccl_transport_failure_t* failure = fails();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("for communicators that rank 1 has not made"));
  EXPECT_TRUE(turned_away(link.value().get()));
}

TEST_F(TcpNodeTest, EarlyBytesOfAllLinksAreCounted) {
  Result<Fd> first = call(0), second = call(2);
  ASSERT_TRUE(first.ok() && second.ok());
  put(first.value().get(), early_head(kEarlyBytes * 3 / 4));
  put(second.value().get(), early_head(kEarlyBytes / 2));
  await([&] {
    const std::lock_guard lock(node_->mutex());
    return node_->broken(2);
  });
  EXPECT_EQ(channel_->failure(), nullptr);
}

TEST_F(TcpNodeTest, EarlyBytesOfALinkThatEndedAreGivenBack) {
  {
    Result<Fd> ends = call(0);
    ASSERT_TRUE(ends.ok());
    put(ends.value().get(), early_head(kEarlyBytes * 3 / 4));
  }
  ASSERT_TRUE(fails());
  Result<Fd> link = call(2);
  ASSERT_TRUE(link.ok());
  Bytes message = early_head(kEarlyBytes / 2);
  message.resize(message.size() + kEarlyBytes / 2);
  put(link.value().get(), message);
  mirror::Header goodbye{};
  goodbye.kind = mirror::MessageKind::goodbye;
  const Head head = make_head(goodbye, 0, false);
  put(link.value().get(), ByteView(reinterpret_cast<const uint8_t*>(&head), sizeof head));
  shutdown(link.value().get(), SHUT_WR);
  EXPECT_TRUE(turned_away(link.value().get()));
  const std::lock_guard lock(node_->mutex());
  EXPECT_FALSE(node_->broken(2)) << node_->problem(2);
}

TEST_F(TcpNodeTest, BytesOutsideTheRingEndTheChannel) {
  Result<Fd> link = call();
  ASSERT_TRUE(link.ok());
  mirror::Header header{};
  header.channel = header.tag = 7;
  header.kind = mirror::MessageKind::bytes;
  header.at = ~uint64_t{0} - 10;
  const Head head = make_head(header, 4096, false);
  put(link.value().get(), ByteView(reinterpret_cast<const uint8_t*>(&head), sizeof head));
  const fsccl_transport_failure_t* failure = fails();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, FSCCL_ERR_PROTOCOL);
}

// The bytes of a message go to the caller's memory, and half of them are there when the channel
// fails. The message must not count as received.
TEST_F(TcpNodeTest, AMessageInWhoseMiddleTheChannelFailsNeverCounts) {
  Result<Fd> link = call();
  ASSERT_TRUE(link.ok());
  constexpr size_t kBytes = 50'000, kFirst = 20'000;
  std::vector<std::byte> wanted(kBytes);
  channel_->expect(0, 1, 0, wanted.data(), kBytes);
  const Bytes whole = message(mirror::MessageKind::line, 1, kBytes);
  put(link.value().get(), ByteView(whole).first(kFirst));
  const Deadline deadline = Deadline::in_ms(kLongMs);
  while (wanted[kFirst - sizeof(Head) - 1] == std::byte{0} && !deadline.passed()) node_->poll(-1);
  fsccl_transport_failure_t failure{};
  failure.code = FSCCL_ERR_PEER_DEAD;
  channel_->fail(failure);
  put(link.value().get(), ByteView(whole).subspan(kFirst));
  put(link.value().get(), message(mirror::MessageKind::line, 2, kBytes));
  EXPECT_TRUE(comes(2));
  EXPECT_EQ(channel_->poll(0, 1), nullptr);
  EXPECT_EQ(wanted[kFirst - sizeof(Head) - 1], std::byte{9});
  EXPECT_EQ(wanted[kFirst - sizeof(Head)], std::byte{0});
}

TEST_F(TcpNodeTest, ARankThatEndsWithoutAGoodbyeIsLost) {
  {
    Result<Fd> link = call();
    ASSERT_TRUE(link.ok());
    Bytes half = message(mirror::MessageKind::line, 1, 5000);
    half.resize(4000);
    put(link.value().get(), half);
  }
  const fsccl_transport_failure_t* failure = fails();
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->code, FSCCL_ERR_LINK);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("connection to rank 0 broke"));
}

TEST_F(TcpNodeTest, NobodyAtARanksAddressIsItsLoss) {
  fsccl_transport_line_t line{};
  line.tick = 1;
  channel_->signal(line);
  const fsccl_transport_failure_t* failure = fails();
  ASSERT_TRUE(failure);
  EXPECT_THAT(failure->text, ::testing::HasSubstr("no connection to rank 0: 127.0.0.1:"));
}

TEST_F(TcpNodeTest, MalformedAddressesAreRefused) {
  for (const Endpoint& endpoint : {Endpoint{0, {loopback()}}, Endpoint{1, {}}}) {
    Bytes bytes = encode(endpoint);
    bytes.resize(kAddressBytes * kRanks);
    EXPECT_EQ(node_->connect(bytes.data(), kAddressBytes).code(), FSCCL_ERR_PROTOCOL);
  }
  Bytes many = encode(Endpoint{1, std::vector<IpAddress>(kMostAddresses + 1)});
  many.resize(kAddressBytes * kRanks);
  EXPECT_EQ(node_->connect(many.data(), kAddressBytes).code(), FSCCL_ERR_PROTOCOL);
  const Bytes few = encode(Endpoint{1, std::vector<IpAddress>(2)});
  EXPECT_FALSE(decode_endpoint(ByteView(few).first(few.size() - 1)).ok());
}

}  // namespace
}  // namespace fsccl::tcp
