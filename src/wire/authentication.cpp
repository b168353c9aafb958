#include "wire/authentication.h"

#include <sodium.h>

#include <algorithm>
#include <cstdlib>

namespace fsccl {

namespace {

// Cannot fail but for a system without a source of random numbers, on which nothing here may be
// trusted.
void ready() {
  static const bool good = sodium_init() >= 0;
  if (!good) std::abort();
}

}  // namespace

SecretKey::SecretKey(ByteView bytes) {
  std::copy_n(bytes.begin(), std::min(bytes.size(), kKeyBytes), bytes_.begin());
}

SecretKey::~SecretKey() { wipe(bytes_.data(), bytes_.size()); }

SecretKey SecretKey::random() {
  SecretKey key;
  random_bytes(key.bytes_.data(), key.bytes_.size());
  return key;
}

SecretKey SecretKey::derive(std::string_view label, ByteView secret) {
  ready();
  crypto_auth_hmacsha256_state state;
  static constexpr unsigned char kNone = 0;  // a secret of no bytes may lie nowhere
  crypto_auth_hmacsha256_init(&state, secret.empty() ? &kNone : secret.data(), secret.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(label.data()),
                                label.size());
  SecretKey key;
  crypto_auth_hmacsha256_final(&state, key.bytes_.data());
  wipe(&state, sizeof(state));
  return key;
}

void random_bytes(void* data, size_t bytes) {
  ready();
  randombytes_buf(data, bytes);
}

uint64_t random_number() {
  uint64_t number = 0;
  while (number == 0) random_bytes(&number, sizeof(number));
  return number;
}

void wipe(void* data, size_t bytes) { sodium_memzero(data, bytes); }

Digest authenticate(const SecretKey& key, std::string_view label, ByteView first, ByteView second) {
  ready();
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, key.data(), kKeyBytes);
  const auto add = [&](const void* data, size_t bytes) {
    // with each piece its length, so that no two lists of pieces read the same
    const uint64_t length = bytes;
    crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(&length),
                                  sizeof(length));
    crypto_auth_hmacsha256_update(&state, static_cast<const unsigned char*>(data), bytes);
  };
  add(label.data(), label.size());
  add(first.data(), first.size());
  add(second.data(), second.size());
  Digest digest;
  crypto_auth_hmacsha256_final(&state, digest.data());
  wipe(&state, sizeof(state));
  return digest;
}

bool equal_constant_time(const Digest& a, const Digest& b) {
  return sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

Digest fingerprint_text(std::string_view text) {
  ready();
  Digest digest;
  crypto_hash_sha256(digest.data(), reinterpret_cast<const unsigned char*>(text.data()),
                     text.size());
  return digest;
}

}  // namespace fsccl
