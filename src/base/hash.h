// Hashes of histories and definitions, which all ranks compute in the same way. They do not protect
// against an attacker.
#pragma once
#include <cstdint>
#include <string_view>

namespace fsccl {

// Mixes a value into a hash (splitmix64's finaliser, Steele et al. 2014). The order of the two
// arguments does not matter.
constexpr uint64_t mix_hash(uint64_t hash, uint64_t value) {
  uint64_t x = hash + 0x9e3779b97f4a7c15ull + value;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Mixes a value into a hash, where the order of the two arguments matters.
constexpr uint64_t mix_in_order(uint64_t before, uint64_t value) {
  return mix_hash(before * 0x9e3779b97f4a7c15ull, value);
}

constexpr uint64_t hash_of(std::string_view text) {
  uint64_t hash = mix_hash(text.size(), 0);
  for (const char c : text) hash = mix_in_order(hash, static_cast<unsigned char>(c));
  return hash;
}

}  // namespace fsccl
