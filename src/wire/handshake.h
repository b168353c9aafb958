// The first three messages of every connection: each side proves to the other, by the job's secret,
// that it belongs to the job, and tells its version.
//
//     Hello      the connecting side, its purpose, and a nonce            connecting side
//     Challenge  the listening side, a nonce, a proof over both messages  listening side
//     Proof      a proof over both messages                               connecting side
//
// A proof is HMAC-SHA256(job key, direction, Hello, Challenge without its proof). It holds only for
// this job, this pair of nonces and this direction, so a recorded or reflected proof is useless.
// Ranks of one user on one host may do without a secret: then both ask the kernel for the user of
// the other side (AuthMode::kUser), and the proofs are zero. A side accepts only its own mode, so
// nobody can persuade it to use a weaker one.
//
// Versions are compared after the proofs, so the version of a stranger never fails a job.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/version.h"
#include "wire/authentication.h"
#include "wire/bytes.h"

namespace fsccl {

inline constexpr uint16_t kProtocolVersion = 1;

enum class AuthMode : uint8_t { kSecret = 1, kUser = 2, kNone = 3 };
enum class Purpose : uint8_t {
  kRegister = 1,
  kReport = 2,
  kLink = 3,
  kFetch = 4,
  kMend = 5,
  kSubscribe = 6
};
inline constexpr int32_t kSubscriberRank = -2;  // the rank in the Hello of a subscriber

struct Version {
  uint16_t protocol = kProtocolVersion;
  uint32_t library = library_version();
};

struct Hello {
  Version version;
  AuthMode mode = AuthMode::kSecret;
  Purpose purpose = Purpose::kRegister;
  uint64_t job = 0;  // number of the job, or of the rendezvous when the job has no number yet
  int32_t rank = -1;
  int32_t ranks = 0;
  Nonce nonce = {};
};

struct Challenge {
  Version version;
  AuthMode mode = AuthMode::kSecret;
  uint64_t job = 0;
  int32_t rank = -1;  // rank of the listener, -1 for the rendezvous
  Nonce nonce = {};
  Digest proof = {};
};

inline constexpr size_t kHelloBytes = 2 + 4 + 1 + 1 + 8 + 4 + 4 + 32;
inline constexpr size_t kChallengeBytes = 2 + 4 + 1 + 8 + 4 + 32 + 32;
inline constexpr size_t kProofBytes = 32;

Bytes encode(const Hello& hello);
Bytes encode(const Challenge& challenge);
Result<Hello> decode_hello(ByteView payload);
Result<Challenge> decode_challenge(ByteView payload);

struct Credentials {
  AuthMode mode = AuthMode::kUser;
  SecretKey key;
  Version version;  // version of this side
};

// Nonces are passed in, so that a handshake is a pure function of its inputs.
class HandshakeClient {
 public:
  HandshakeClient(const Credentials& credentials, Purpose purpose, uint64_t job, int32_t rank,
                  int32_t ranks, const Nonce& nonce);
  Bytes hello() const { return hello_bytes_; }
  // Returns the proof to send. FSCCL_ERR_AUTH: the listener does not know the secret, so send
  // nothing.
  Result<Bytes> answer(ByteView challenge);
  // Is called after the proof was sent. Returns FSCCL_ERR_VERSION if the versions differ.
  Status compare_versions() const;
  const Challenge& peer() const { return challenge_; }

 private:
  Credentials credentials_;
  Hello hello_;
  Bytes hello_bytes_;
  Challenge challenge_;
};

class HandshakeServer {
 public:
  HandshakeServer(const Credentials& credentials, uint64_t job, int32_t rank, const Nonce& nonce);
  Result<Bytes> challenge(ByteView hello);
  Status check(ByteView proof) const;
  Status compare_versions() const;
  const Hello& peer() const { return hello_; }

 private:
  Credentials credentials_;
  Challenge challenge_;
  Hello hello_;
  Digest expected_ = {};
};

}  // namespace fsccl
