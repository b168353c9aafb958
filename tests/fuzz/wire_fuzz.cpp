// Fuzzes everything that comes over a control connection. If a decoder accepts a message, encoding
// the result gives the same bytes. A handshake never accepts a proof that was not made with its
// key. The first byte chooses the decoder.
#include <algorithm>
#include <cstring>

#include "fuzz.h"
#include "wire/beat.h"
#include "wire/frame.h"
#include "wire/handshake.h"
#include "wire/messages.h"

namespace {

using namespace fsccl;

constexpr int32_t kRanks = 5;

// Checks that encoding the result gives the same bytes, as encodings have no padding and one form
// only.
template <class T>
void same_again(const Result<T>& decoded, ByteView payload) {
  if (!decoded.ok()) return;
  const Bytes again = encode(decoded.value());
  FUZZ_REQUIRE(again.size() == payload.size() &&
               std::memcmp(again.data(), payload.data(), again.size()) == 0);
}

Credentials credentials() {
  return {AuthMode::kSecret,
          SecretKey::derive("fuzz", ByteView(reinterpret_cast<const uint8_t*>("secret"), 6)),
          {}};
}

void talk_to_server(ByteView payload) {
  HandshakeServer server(credentials(), 7, 0, Nonce{1});
  const size_t hello = std::min(payload.size(), kHelloBytes);
  if (!server.challenge(payload.subspan(0, hello)).ok()) return;
  FUZZ_REQUIRE(!server.check(payload.subspan(hello)).ok());
}

void talk_to_client(ByteView payload) {
  HandshakeClient client(credentials(), Purpose::kLink, 7, 1, kRanks, Nonce{2});
  FUZZ_REQUIRE(!client.answer(payload).ok());
}

// Checks that the input is no valid heartbeat, because it was not made with the key.
void open_nothing(ByteView payload) {
  const int32_t rank = claimed_rank(payload);
  FUZZ_REQUIRE(rank >= -1);
  FUZZ_REQUIRE(rank < 0 || payload.size() == kBeatBytes);
  FUZZ_REQUIRE(open_beat(SecretKey::random(), payload, 0) == 0);
}

MemberRecord member(int32_t rank) {
  MemberRecord record;
  record.rank = rank;
  record.host = 3;
  record.pid = 100 + rank;
  record.port = 4000;
  return record;
}

void same_stands(ByteView payload) {
  const Result<std::vector<Vote>> votes = decode_votes(payload, kRanks);
  if (!votes.ok()) return;
  for (const Vote& vote : votes.value()) {
    FUZZ_REQUIRE(vote.rank >= 0 && vote.rank < kRanks &&
                 vote.failed.size() <= static_cast<size_t>(kRanks));
    for (const int32_t rank : vote.failed) FUZZ_REQUIRE(rank >= 0 && rank < kRanks);
  }
  FUZZ_REQUIRE(std::ranges::equal(encode_votes(votes.value()), payload));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  if (bytes == 0) return 0;
  const ByteView payload(data + 1, bytes - 1);
  switch (data[0] % 15) {
    case 0:
      (void)decode_header(payload.subspan(0, std::min(payload.size(), kFrameHeaderBytes)), 1 << 20)
          .ok();
      break;
    case 1: {
      const Result<Failure> failure = decode_failure(payload);
      if (failure.ok()) FUZZ_REQUIRE(!to_status(failure.value()).ok());
      break;
    }
    case 2:
      same_again(decode_register(payload), payload);
      break;
    case 3:
      same_again(decode_assign(payload, kRanks), payload);
      break;
    case 4: {
      const Result<std::vector<MemberRecord>> members = decode_members(payload, kRanks);
      if (members.ok()) FUZZ_REQUIRE(members.value().size() == static_cast<size_t>(kRanks));
      break;
    }
    case 5: {
      const Result<Gather> gather = decode_gather(payload, kRanks);
      if (gather.ok())
        for (const Gather::Contribution& one : gather.value().contributions) {
          FUZZ_REQUIRE(one.rank >= 0 && one.rank < kRanks &&
                       one.data.size() == gather.value().bytes);
          FUZZ_REQUIRE(one.data.empty() || (one.data.data() >= data &&
                                            one.data.data() + one.data.size() <= data + bytes));
        }
      same_again(gather, payload);
      break;
    }
    case 6:
      same_again(decode_gathered(payload), payload);
      break;
    case 7: {
      const Result<std::vector<LostRank>> losses = decode_losses(payload, kRanks);
      if (losses.ok())
        for (const LostRank& lost : losses.value())
          FUZZ_REQUIRE(lost.rank >= 0 && lost.rank < kRanks);
      break;
    }
    case 12: {
      const Result<std::vector<Silent>> silent = decode_silent(payload, kRanks);
      if (silent.ok()) {
        FUZZ_REQUIRE(silent.value().size() <= static_cast<size_t>(kRanks));
        for (const Silent& one : silent.value()) FUZZ_REQUIRE(one.rank >= 0 && one.rank < kRanks);
        FUZZ_REQUIRE(
            std::equal(payload.begin(), payload.end(), encode_silent(silent.value()).begin()));
      }
      break;
    }
    case 8:
      (void)decode_tag(payload).ok();
      break;
    case 9:
      same_again(decode_hello(payload), payload);
      same_again(decode_challenge(payload), payload);
      break;
    case 10:
      talk_to_server(payload);
      break;
    case 13:
      open_nothing(payload);
      break;
    case 11:
      talk_to_client(payload);
      break;
    default:
      same_stands(payload);
  }
  return 0;
}

std::vector<std::string> fuzz_seeds() {
  std::vector<std::string> seeds;
  const auto add = [&](uint8_t kind, const Bytes& bytes) {
    seeds.push_back(seed_of(kind, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}));
  };
  const Failure failure{FSCCL_ERR_TIMEOUT, 1, "late"};
  add(0, encode_frame(FrameType::kFailure, encode(failure)));
  add(1, encode(failure));
  add(2, encode(Register{member(1), 500}));
  add(3, encode(Assign{9, 2, member(0)}));
  std::vector<MemberRecord> members;
  for (int32_t rank = 0; rank < kRanks; rank++) members.push_back(member(rank));
  add(4, encode_members(members));
  const uint8_t data[] = {1, 2, 3, 4};
  Gather gather{1, 2, {{0, ByteView(data, 2)}, {3, ByteView(data + 2, 2)}}};
  add(5, encode(gather));
  add(6, encode(Gathered{2, ByteView(data, 4)}));
  add(7, encode_losses({{1, true}, {4, false}}));
  add(12, encode_silent({{1, 500, true}, {3, 77, false}}));
  add(8, encode_tag(77));
  HandshakeClient client(credentials(), Purpose::kLink, 7, 1, kRanks, Nonce{2});
  HandshakeServer server(credentials(), 7, 0, Nonce{1});
  add(9, client.hello());
  const Bytes challenge = server.challenge(client.hello()).take();
  Bytes talk = client.hello();
  talk.resize(talk.size() + kProofBytes);
  add(10, talk);
  Bytes forged = challenge;
  std::fill(forged.end() - kProofBytes, forged.end(), uint8_t{0});
  add(9, forged);
  add(11, forged);
  std::vector<Vote> votes(2);
  votes[0].meeting = votes[1].meeting = 7;
  votes[0].rank = 1, votes[1].rank = 2;
  votes[0].failed = {0, 3};
  votes[1].refusal = {-6, 1, "no room"};
  votes[1].decided = true;
  add(14, encode_votes(votes));
  const BeatDatagram beat = seal_beat(credentials().key, 3, 77);
  add(13, {beat.begin(), beat.end()});
  return seeds;
}
