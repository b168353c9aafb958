// Fuzzes the bytes that come over a socket of transports/tcp, in pieces of any size. A valid
// message is written to its own place only, every byte once and in order. The target also fuzzes
// endpoint addresses, and both sides of the handshake, which no peer passes without the key.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "fuzz.h"
#include "transports/tcp/endpoint.h"
#include "transports/tcp/greeting.h"
#include "transports/tcp/inbox.h"

namespace {

using namespace fsccl;
using namespace fsccl::tcp;

constexpr size_t kMost = 1u << 20;  // the reader skips larger messages

class Reader final : public Inbox::Reader {
 public:
  std::byte* begin(const Head& head) override {
    FUZZ_REQUIRE(possible(head) && !open_);
    open_ = true;
    if (head.bytes > kMost) return nullptr;
    place_.assign(head.bytes + 1, std::byte{0x5a});
    return place_.data();
  }
  std::byte* go_on(const Head& head, std::byte* place) override {
    FUZZ_REQUIRE(open_ && place == place_.data() && place_.size() == head.bytes + 1);
    return place;
  }
  bool end(const Head& head, std::byte* place) override {
    FUZZ_REQUIRE(open_);
    open_ = false;
    if (place) FUZZ_REQUIRE(place_.back() == std::byte{0x5a});
    if (place) stream.insert(stream.end(), place, place + head.bytes);
    return true;
  }
  void spoilt(const Head&) override { FUZZ_REQUIRE(!open_); }

  std::vector<std::byte> stream;

 private:
  bool open_ = false;
  std::vector<std::byte> place_;
};

std::vector<std::byte> read(ByteView bytes, size_t most, bool checksum) {
  Reader reader;
  Inbox inbox(reader, checksum);
  while (!bytes.empty()) {
    std::array<iovec, 2> places;
    const int count = inbox.room(places);
    size_t now = 0;
    for (int i = 0; i < count; i++) {
      const iovec& place = places[static_cast<size_t>(i)];
      const size_t piece = std::min({place.iov_len, most - now, bytes.size()});
      if (piece) std::memcpy(place.iov_base, bytes.data(), piece);
      bytes = bytes.subspan(piece);
      now += piece;
    }
    FUZZ_REQUIRE(now > 0);
    if (!inbox.took(now)) break;
  }
  return reader.stream;
}

Credentials credentials() {
  return {AuthMode::kSecret,
          SecretKey::derive("fuzz", ByteView(reinterpret_cast<const uint8_t*>("secret"), 6)),
          {}};
}

// Sends the other end's bytes in two pieces, and then hangs up. `side` reads until it has enough of
// them. Returns true if it has completed.
template <class Side>
bool talk(Side& side, Fd peer, ByteView bytes, size_t first) {
  for (const ByteView piece :
       {bytes.first(std::min(first, bytes.size())), bytes.subspan(std::min(first, bytes.size()))}) {
    FUZZ_REQUIRE(send(peer.get(), piece.data(), piece.size(), MSG_NOSIGNAL) ==
                 static_cast<ssize_t>(piece.size()));
    const auto now = side.go_on();
    if (!now.ok()) return false;
    if (now.value()) return true;
  }
  peer = Fd();
  FUZZ_REQUIRE(!side.go_on().ok());
  return false;
}

void greet(ByteView bytes, bool visitor, size_t first) {
  constexpr size_t kMostTalk = 4096;  // a socket takes as many bytes at once
  int ends[2];
  FUZZ_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  Fd own(ends[0]), peer(ends[1]);
  bytes = bytes.first(std::min(bytes.size(), kMostTalk));
  if (visitor) {
    struct {
      Visitor visitor;
      auto go_on() {
        Result<std::optional<int>> who = visitor.go_on(3);
        FUZZ_REQUIRE(!who.ok() || !who.value());  // the proof would have to fit a fresh challenge
        return who;
      }
    } side{Visitor(std::move(own), credentials(), 0, INT64_MAX)};
    talk(side, std::move(peer), bytes, first);
  } else {
    Caller caller(std::move(own), tcp_address(IpAddress{}, 1), credentials(), 1, 0, 3);
    FUZZ_REQUIRE(!talk(caller, std::move(peer), bytes, first));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes < 2) return 0;
  const ByteView rest(data + 2, bytes - 2);
  if (data[0] == 2) {
    const Result<Endpoint> endpoint = decode_endpoint(rest);
    if (!endpoint.ok()) return 0;
    const Bytes again = encode(endpoint.value());
    FUZZ_REQUIRE(again.size() <= rest.size() &&
                 std::equal(again.begin(), again.end(), rest.begin()));
    FUZZ_REQUIRE(endpoint.value().addresses.size() <= kMostAddresses);
    return 0;
  }
  if (data[0] == 3 || data[0] == 4) {
    greet(rest, data[0] == 3, data[1]);
    return 0;
  }
  const bool checksum = data[0] & 1;
  // The result is the same in whatever pieces the bytes come.
  FUZZ_REQUIRE(read(rest, 1 + data[1] % 200, checksum) == read(rest, 4u << 20, checksum));
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, const Bytes& bytes) {
    Bytes all{77};
    all.insert(all.end(), bytes.begin(), bytes.end());
    seeds.push_back(seed_of(kind, {reinterpret_cast<const char*>(all.data()), all.size()}));
  };
  for (const bool checksum : {false, true}) {
    Bytes stream;
    for (const auto& [kind, size] : std::vector<std::pair<mirror::MessageKind, size_t>>{
             {mirror::MessageKind::bytes, 9000},
             {mirror::MessageKind::line, 64},
             {mirror::MessageKind::line, 0},
             {mirror::MessageKind::failure, sizeof(fsccl_transport_failure_t)},
             {mirror::MessageKind::left, 0},
             {mirror::MessageKind::goodbye, 0}}) {
      mirror::Header header{};
      header.kind = kind;
      const Head head = make_head(header, size, checksum);
      const auto* const front = reinterpret_cast<const uint8_t*>(&head);
      stream.insert(stream.end(), front, front + sizeof head);
      stream.resize(stream.size() + size, uint8_t{3});
    }
    add(checksum, stream);
  }
  add(2, encode(Endpoint{4000, std::vector<IpAddress>(3)}));
  // These are the messages of each side of a handshake in which only the key is wrong.
  HandshakeClient client(credentials(), Purpose::kLink, 0, 1, 3, Nonce{2});
  HandshakeServer server(credentials(), 0, 0, Nonce{1});
  Bytes talk = encode_frame(FrameType::kHello, client.hello());
  const Bytes challenge =
      encode_frame(FrameType::kChallenge, server.challenge(client.hello()).take());
  const Bytes proof = encode_frame(FrameType::kProof, Bytes(kProofBytes)),
              linked = encode_frame(FrameType::kLinked, {});
  talk.insert(talk.end(), proof.begin(), proof.end());
  add(3, talk);
  talk = challenge;
  talk.insert(talk.end(), linked.begin(), linked.end());
  add(4, talk);
  return seeds;
}
