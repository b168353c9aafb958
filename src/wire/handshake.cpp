#include "wire/handshake.h"

#include <algorithm>

#include "wire/frame.h"

namespace fsccl {

namespace {

constexpr std::string_view kListenerLabel = "fsccl handshake listener";
constexpr std::string_view kConnectorLabel = "fsccl handshake connector";

const char* mode_name(AuthMode mode) {
  switch (mode) {
    case AuthMode::kSecret:
      return "the job's secret";
    case AuthMode::kUser:
      return "being the same user";
    case AuthMode::kNone:
      return "nothing (FSCCL_INSECURE=1)";
  }
  return "an unknown proof";
}

bool known(AuthMode mode) { return mode >= AuthMode::kSecret && mode <= AuthMode::kNone; }

Status wrong_secret() {
  return fail(FSCCL_ERR_AUTH,
              "the other side does not know the secret of this job: give all ranks the same unique "
              "id or FSCCL_JOB_SECRET_FILE");
}

Status compare_modes(AuthMode mine, AuthMode theirs) {
  if (mine == theirs) return success();
  return fail(FSCCL_ERR_AUTH,
              "this rank trusts {}, the other side {}: set FSCCL_JOB_SECRET_FILE and "
              "FSCCL_INSECURE alike on all ranks",
              mode_name(mine), mode_name(theirs));
}

std::string version_text(const Version& version) {
  const uint32_t number = version.library;
  return fmt::format("FSCCL {}.{}.{} (protocol {})", number / 10000, number / 100 % 100,
                     number % 100, version.protocol);
}

std::string name_of(int32_t rank) {
  if (rank == kSubscriberRank) return "the subscriber";
  return rank < 0 ? "the rendezvous" : fmt::format("rank {}", rank);
}

Status compare(const Version& connector, int32_t connector_rank, const Version& listener,
               int32_t listener_rank) {
  if (connector.protocol == listener.protocol && connector.library == listener.library)
    return success();
  return fail(FSCCL_ERR_VERSION, "{} runs {}, {} runs {}: all ranks need the same version",
              name_of(connector_rank), version_text(connector), name_of(listener_rank),
              version_text(listener));
}

Bytes encode_unproven(const Challenge& challenge) {
  ByteWriter writer(kChallengeBytes);
  writer.put(challenge.version.protocol)
      .put(challenge.version.library)
      .put(static_cast<uint8_t>(challenge.mode));
  writer.put(challenge.job).put(challenge.rank).put(challenge.nonce);
  return writer.take();
}

Digest prove(const Credentials& credentials, std::string_view label, ByteView hello,
             const Challenge& challenge) {
  if (credentials.mode != AuthMode::kSecret) return {};
  return authenticate(credentials.key, label, hello, encode_unproven(challenge));
}

}  // namespace

Bytes encode(const Hello& hello) {
  ByteWriter writer(kHelloBytes);
  writer.put(hello.version.protocol)
      .put(hello.version.library)
      .put(static_cast<uint8_t>(hello.mode))
      .put(static_cast<uint8_t>(hello.purpose));
  writer.put(hello.job).put(hello.rank).put(hello.ranks).put(hello.nonce);
  return writer.take();
}

Bytes encode(const Challenge& challenge) {
  Bytes bytes = encode_unproven(challenge);
  bytes.insert(bytes.end(), challenge.proof.begin(), challenge.proof.end());
  return bytes;
}

Result<Hello> decode_hello(ByteView payload) {
  ByteReader reader(payload);
  Hello hello;
  hello.version.protocol = reader.get<uint16_t>();
  hello.version.library = reader.get<uint32_t>();
  hello.mode = static_cast<AuthMode>(reader.get<uint8_t>());
  hello.purpose = static_cast<Purpose>(reader.get<uint8_t>());
  hello.job = reader.get<uint64_t>();
  hello.rank = reader.get<int32_t>();
  hello.ranks = reader.get<int32_t>();
  reader.get(hello.nonce);
  const bool purpose_known =
      hello.purpose >= Purpose::kRegister && hello.purpose <= Purpose::kSubscribe;
  if (!reader.finished() || !known(hello.mode) || !purpose_known) return bad_payload("Hello");
  return hello;
}

Result<Challenge> decode_challenge(ByteView payload) {
  ByteReader reader(payload);
  Challenge challenge;
  challenge.version.protocol = reader.get<uint16_t>();
  challenge.version.library = reader.get<uint32_t>();
  challenge.mode = static_cast<AuthMode>(reader.get<uint8_t>());
  challenge.job = reader.get<uint64_t>();
  challenge.rank = reader.get<int32_t>();
  reader.get(challenge.nonce);
  reader.get(challenge.proof);
  if (!reader.finished() || !known(challenge.mode)) return bad_payload("Challenge");
  return challenge;
}

HandshakeClient::HandshakeClient(const Credentials& credentials, Purpose purpose, uint64_t job,
                                 int32_t rank, int32_t ranks, const Nonce& nonce)
    : credentials_(credentials),
      hello_{credentials.version, credentials.mode, purpose, job, rank, ranks, nonce},
      hello_bytes_(encode(hello_)) {}

Result<Bytes> HandshakeClient::answer(ByteView challenge) {
  FSCCL_ASSIGN(challenge_, decode_challenge(challenge));
  FSCCL_TRY(compare_modes(credentials_.mode, challenge_.mode));
  if (!equal_constant_time(challenge_.proof,
                           prove(credentials_, kListenerLabel, hello_bytes_, challenge_)))
    return wrong_secret();
  const Digest proof = prove(credentials_, kConnectorLabel, hello_bytes_, challenge_);
  return Bytes(proof.begin(), proof.end());
}

Status HandshakeClient::compare_versions() const {
  return compare(hello_.version, hello_.rank, challenge_.version, challenge_.rank);
}

HandshakeServer::HandshakeServer(const Credentials& credentials, uint64_t job, int32_t rank,
                                 const Nonce& nonce)
    : credentials_(credentials),
      challenge_{credentials.version, credentials.mode, job, rank, nonce, {}} {}

Result<Bytes> HandshakeServer::challenge(ByteView hello) {
  FSCCL_ASSIGN(hello_, decode_hello(hello));
  FSCCL_TRY(compare_modes(credentials_.mode, hello_.mode));
  challenge_.proof = prove(credentials_, kListenerLabel, hello, challenge_);
  expected_ = prove(credentials_, kConnectorLabel, hello, challenge_);
  return encode(challenge_);
}

Status HandshakeServer::check(ByteView proof) const {
  if (proof.size() != kProofBytes) return bad_payload("Proof");
  Digest received;
  std::copy(proof.begin(), proof.end(), received.begin());
  return equal_constant_time(received, expected_) ? success() : wrong_secret();
}

Status HandshakeServer::compare_versions() const {
  return compare(hello_.version, hello_.rank, challenge_.version, challenge_.rank);
}

}  // namespace fsccl
