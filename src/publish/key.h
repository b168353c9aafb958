// The key of a publication. If FSCCL_JOB_SECRET_FILE is set, the key follows from the secret in
// that file alone, so that a subscriber with the file needs only an address. Otherwise the key
// follows from the job's secret and a random salt, and the ticket carries the key. Nobody can join
// the job with the key.
#pragma once
#include <string>

#include "base/config.h"
#include "bootstrap/credentials.h"
#include "bootstrap/job.h"

namespace fsccl::publish {

struct Salt {
  std::array<uint8_t, kKeyBytes> bytes{};
  static Salt random() {
    Salt salt;
    random_bytes(salt.bytes.data(), salt.bytes.size());
    return salt;
  }
};

struct PublicationKey {
  Credentials credentials;
  uint64_t number = 0;  // names the publication; follows from the key
};

inline PublicationKey publication_key(const SecretKey& key) {
  PublicationKey made;
  made.credentials.mode = AuthMode::kSecret;
  made.credentials.key = key;
  const Digest digest = authenticate(key, "fsccl publication number", {});
  std::memcpy(&made.number, digest.data(), sizeof made.number);
  return made;
}

// Derives the key of a publication from the secret in the file at `path`.
inline Result<PublicationKey> key_of_file(const std::string& path) {
  FSCCL_ASSIGN(const SecretKey secret, read_secret_file(path));
  return publication_key(
      SecretKey::derive("fsccl publication", ByteView(secret.data(), kKeyBytes)));
}

inline Result<PublicationKey> key_of_publication(const Job& job, const Salt& salt) {
  const std::string path = config()->job_secret_file;
  if (!path.empty()) return key_of_file(path);
  return publication_key(job.derive_key("fsccl publication", ByteView(salt.bytes)));
}

}  // namespace fsccl::publish
