// Tests the handshake as two pure state machines: which peers are accepted, which are refused, and
// which errors each side gets.
#include "wire/handshake.h"

#include <gtest/gtest.h>

#include <random>

namespace fsccl {
namespace {

constexpr uint64_t kHandshakeJob = 42;

Nonce nonce_of(uint8_t seed) {
  Nonce nonce;
  nonce.fill(seed);
  return nonce;
}

Credentials secret(const char* text) {
  Credentials credentials;
  credentials.mode = AuthMode::kSecret;
  const std::string_view view = text;
  credentials.key = SecretKey::derive(
      "test", ByteView(reinterpret_cast<const uint8_t*>(view.data()), view.size()));
  return credentials;
}

HandshakeClient client_of(const Credentials& credentials, uint8_t seed = 1) {
  return {credentials, Purpose::kLink, kHandshakeJob, 3, 8, nonce_of(seed)};
}
HandshakeServer server_of(const Credentials& credentials, uint8_t seed = 2) {
  return {credentials, kHandshakeJob, 1, nonce_of(seed)};
}

TEST(Handshake, BothSidesProveThemselves) {
  HandshakeClient client = client_of(secret("x"));
  HandshakeServer server = server_of(secret("x"));
  const Result<Bytes> challenge = server.challenge(client.hello());
  ASSERT_TRUE(challenge.ok());
  const Result<Bytes> proof = client.answer(challenge.value());
  ASSERT_TRUE(proof.ok()) << proof.status().text();
  EXPECT_TRUE(server.check(proof.value()).ok());
  EXPECT_TRUE(server.compare_versions().ok());
  EXPECT_TRUE(client.compare_versions().ok());
  EXPECT_EQ(server.peer().rank, 3);
  EXPECT_EQ(server.peer().ranks, 8);
  EXPECT_EQ(server.peer().purpose, Purpose::kLink);
  EXPECT_EQ(client.peer().rank, 1);
}

TEST(Handshake, WrongSecretIsSeenByBoth) {
  HandshakeClient client = client_of(secret("x"));
  HandshakeServer server = server_of(secret("y"));
  const Result<Bytes> challenge = server.challenge(client.hello());
  ASSERT_TRUE(challenge.ok());
  EXPECT_EQ(client.answer(challenge.value()).status().code(), FSCCL_ERR_AUTH);
  EXPECT_EQ(server.check(Bytes(kProofBytes)).code(), FSCCL_ERR_AUTH);
}

TEST(Handshake, ProofsCannotBeReflectedOrReplayed) {
  HandshakeServer server = server_of(secret("x"));
  HandshakeClient client = client_of(secret("x"));
  const Bytes challenge = server.challenge(client.hello()).take();
  // The listener's own proof is not the connector's.
  EXPECT_EQ(server.check(ByteView(challenge).last(kProofBytes)).code(), FSCCL_ERR_AUTH);
  const Bytes proof = client.answer(challenge).take();
  EXPECT_TRUE(server.check(proof).ok());
  // For the same Hello a later server has another nonce, so a recorded proof is refused. A recorded
  // challenge is refused for another Hello.
  HandshakeServer later = server_of(secret("x"), 9);
  ASSERT_TRUE(later.challenge(client.hello()).ok());
  EXPECT_EQ(later.check(proof).code(), FSCCL_ERR_AUTH);
  EXPECT_EQ(client_of(secret("x"), 7).answer(challenge).status().code(), FSCCL_ERR_AUTH);
}

TEST(Handshake, EveryFieldOfTheHelloIsBound) {
  for (size_t at = 0; at < kHelloBytes; ++at) {
    HandshakeClient client = client_of(secret("x"));
    Bytes hello = client.hello();
    hello[at] ^= 1;
    HandshakeServer server = server_of(secret("x"));
    const Result<Bytes> challenge = server.challenge(hello);
    if (challenge.ok()) {
      EXPECT_EQ(client.answer(challenge.value()).status().code(), FSCCL_ERR_AUTH) << at;
    }
  }
}

TEST(Handshake, EveryFieldOfTheChallengeIsBound) {
  for (size_t at = 0; at < kChallengeBytes; ++at) {
    HandshakeClient client = client_of(secret("x"));
    HandshakeServer server = server_of(secret("x"));
    Bytes challenge = server.challenge(client.hello()).take();
    challenge[at] ^= 1;
    EXPECT_FALSE(client.answer(challenge).ok()) << at;
  }
}

TEST(Handshake, NobodyIsTalkedIntoAWeakerMode) {
  Credentials none;
  none.mode = AuthMode::kNone;
  HandshakeServer server = server_of(secret("x"));
  const Status refused = server.challenge(client_of(none).hello()).take_status();
  EXPECT_EQ(refused.code(), FSCCL_ERR_AUTH);
  EXPECT_NE(refused.text().find("FSCCL_JOB_SECRET_FILE"), std::string::npos);
  HandshakeServer weak = server_of(none);
  HandshakeClient client = client_of(secret("x"));
  EXPECT_EQ(weak.challenge(client.hello()).status().code(), FSCCL_ERR_AUTH);
}

TEST(Handshake, VersionsAreComparedByBothAndNamed) {
  Credentials newer = secret("x");
  newer.version.library = 10203;
  HandshakeClient client = client_of(newer);
  HandshakeServer server = server_of(secret("x"));
  const Bytes challenge = server.challenge(client.hello()).take();
  const Result<Bytes> proof = client.answer(challenge);
  ASSERT_TRUE(proof.ok());  // versions are compared later, so a stranger's version fails no job
  EXPECT_TRUE(server.check(proof.value()).ok());
  for (const Status& status : {client.compare_versions(), server.compare_versions()}) {
    EXPECT_EQ(status.code(), FSCCL_ERR_VERSION);
    EXPECT_NE(status.text().find("rank 3 runs FSCCL 1.2.3"), std::string::npos) << status.text();
    EXPECT_NE(status.text().find("rank 1 runs FSCCL 0.1.0"), std::string::npos) << status.text();
  }
}

TEST(Handshake, WrongLengthsAndUnknownValuesAreRefused) {
  HandshakeServer server = server_of(secret("x"));
  const Bytes hello = client_of(secret("x")).hello();
  ASSERT_EQ(hello.size(), kHelloBytes);
  for (size_t bytes = 0; bytes < hello.size(); ++bytes)
    EXPECT_FALSE(server.challenge(ByteView(hello).first(bytes)).ok());
  Bytes longer = hello;
  longer.push_back(0);
  EXPECT_FALSE(server.challenge(longer).ok());
  Bytes purpose = hello;
  purpose[7] = 99;
  EXPECT_FALSE(server.challenge(purpose).ok());
  EXPECT_FALSE(server.check(Bytes(31)).ok());
  EXPECT_FALSE(server.check(Bytes(33)).ok());
}

TEST(Handshake, ForgedProofsAreRefused) {
  std::mt19937 random(1);
  HandshakeServer server = server_of(secret("x"));
  HandshakeClient client = client_of(secret("x"));
  const Bytes proof = client.answer(server.challenge(client.hello()).value()).take();
  for (int round = 0; round < 20000; ++round) {
    Bytes forged = proof;
    forged[random() % forged.size()] ^= static_cast<uint8_t>(1 + random() % 255);
    ASSERT_FALSE(server.check(forged).ok());
  }
}

TEST(Authentication, HmacSha256KnownAnswer) {
  // This is test case 1 of RFC 4231 for HMAC-SHA256(key, data), computed with derive().
  const Bytes key(20, 0x0b);
  const SecretKey derived = SecretKey::derive("Hi There", key);
  const uint8_t expected[] = {0xb0, 0x34, 0x4c, 0x61, 0xd8, 0xdb, 0x38, 0x53, 0x5c, 0xa8, 0xaf,
                              0xce, 0xaf, 0x0b, 0xf1, 0x2b, 0x88, 0x1d, 0xc2, 0x00, 0xc9, 0x83,
                              0x3d, 0xa7, 0x26, 0xe9, 0x37, 0x6c, 0x2e, 0x32, 0xcf, 0xf7};
  EXPECT_EQ(std::memcmp(derived.data(), expected, sizeof(expected)), 0);
}

TEST(Authentication, PiecesCannotBeShiftedIntoEachOther) {
  const SecretKey key = SecretKey::random();
  const Bytes one = {1}, two = {2}, both = {1, 2};
  EXPECT_NE(authenticate(key, "a", one, two), authenticate(key, "a", both, {}));
  EXPECT_NE(authenticate(key, "a", one, two), authenticate(key, "b", one, two));
  EXPECT_EQ(authenticate(key, "a", one, two), authenticate(key, "a", one, two));
}

}  // namespace
}  // namespace fsccl
