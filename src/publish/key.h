// The key of a publication. It follows from the secret in FSCCL_JOB_SECRET_FILE alone, if there is
// one, so that a subscriber with that file needs nothing else; else from the job's secret and a
// salt. Nobody can join the job with it.
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
  uint64_t number = 0;  // names the publication; all that have the key know it
};

inline PublicationKey publication_key(const SecretKey& key) {
  PublicationKey made;
  made.credentials.mode = AuthMode::kSecret;
  made.credentials.key = key;
  const Digest digest = authenticate(key, "fsccl publication number", {});
  std::memcpy(&made.number, digest.data(), sizeof made.number);
  return made;
}

// Reads the key of a publication from the file that the settings name.
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
