// Proves that a side knows a secret without showing it: HMAC-SHA256 over everything that both sides
// have said, under a key that only the job knows. A key is wiped when its owner ends. A comparison
// takes the same time whatever the bytes are.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "wire/bytes.h"

namespace fsccl {

inline constexpr size_t kKeyBytes = 32;
using Digest = std::array<uint8_t, 32>;
using Nonce = std::array<uint8_t, 32>;

class SecretKey {
 public:
  SecretKey() = default;
  explicit SecretKey(ByteView bytes);  // takes exactly kKeyBytes
  SecretKey(const SecretKey&) = default;
  SecretKey& operator=(const SecretKey&) = default;
  ~SecretKey();
  static SecretKey random();
  // Makes a key from a secret of any length, such as the content of a file.
  static SecretKey derive(std::string_view label, ByteView secret);
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kKeyBytes> bytes_ = {};
};

void random_bytes(void* data, size_t bytes);
uint64_t random_number();  // never 0
void wipe(void* data, size_t bytes);

// Returns a proof. The label names the side that makes it, so that a proof cannot be sent back to
// its maker.
Digest authenticate(const SecretKey& key, std::string_view label, ByteView first,
                    ByteView second = {});
bool equal_constant_time(const Digest& a, const Digest& b);
// Returns a digest of public things, from which names are made.
Digest fingerprint_text(std::string_view text);

}  // namespace fsccl
