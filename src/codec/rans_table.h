// Computes, writes and reads the frequencies of a rANS section.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr uint32_t kRansBits = 12, kRansScale = 1u << kRansBits;
inline constexpr uint32_t kRansLeast = 1u << 15;  // least value of a state

using RansFrequencies =
    std::array<uint16_t, 256>;  // they add up to kRansScale; none is kRansScale itself

inline std::array<uint32_t, 256> count_bytes_of(const uint8_t* bytes, size_t count) {
  std::array<std::array<uint32_t, 256>, 4>
      tables{};  // runs of one value would wait for each other in one table
  size_t i = 0;
  for (; i + 4 <= count; i += 4)
    for (size_t k = 0; k < 4; k++) tables[k][bytes[i + k]]++;
  for (; i < count; i++) tables[0][bytes[i]]++;
  for (size_t s = 0; s < 256; s++) tables[0][s] += tables[1][s] + tables[2][s] + tables[3][s];
  return tables[0];
}

// Scales the counts to kRansScale. Each symbol that occurs gets at least 1, and the most frequent
// symbols absorb the difference from rounding.
inline RansFrequencies rans_frequencies(const std::array<uint32_t, 256>& counts, size_t count) {
  RansFrequencies made{};
  int64_t left = kRansScale;
  for (size_t s = 0; s < 256; s++) {
    if (!counts[s]) continue;
    const uint64_t exact = (uint64_t{counts[s]} * kRansScale + count / 2) / count;
    made[s] = static_cast<uint16_t>(std::clamp<uint64_t>(exact, 1, kRansScale - 1));
    left -= made[s];
  }
  while (left != 0) {
    const auto most = std::max_element(made.begin(), made.end());
    if (left > 0 && *most + left < kRansScale) {
      *most = static_cast<uint16_t>(*most + left);
      return made;
    }
    if (left > 0) {  // one symbol alone: another one, which does not occur, takes the rest
      made[most == made.begin() ? 1 : 0] = static_cast<uint16_t>(left);
      return made;
    }
    const int64_t take = std::min<int64_t>(-left, std::max<int64_t>(1, *most / 8));
    *most = static_cast<uint16_t>(*most - take);
    left += take;
  }
  return made;
}

inline uint8_t* write_frequencies(const RansFrequencies& frequencies, uint8_t* out) {
  uint8_t* at = out + 32;
  std::fill(out, at, uint8_t{0});
  for (size_t s = 0; s < 256; s++) {
    if (!frequencies[s]) continue;
    out[s / 8] = static_cast<uint8_t>(out[s / 8] | 1u << s % 8);
    const unsigned value = frequencies[s] - 1u;
    *at++ = static_cast<uint8_t>(value < 128 ? value : (value & 127) | 128);
    if (value >= 128) *at++ = static_cast<uint8_t>(value >> 7);
  }
  return at;
}

// Returns the address behind the table, or null if the table is damaged or reaches beyond `end`.
inline const uint8_t* read_frequencies(const uint8_t* in, const uint8_t* end,
                                       RansFrequencies* frequencies) {
  if (end - in < 32) return nullptr;
  const uint8_t* at = in + 32;
  uint32_t sum = 0;
  frequencies->fill(0);
  for (size_t s = 0; s < 256; s++) {
    if (!(in[s / 8] >> s % 8 & 1)) continue;
    if (at == end) return nullptr;
    uint32_t value = *at++;
    if (value & 128) {
      if (at == end) return nullptr;
      value = (value & 127) | uint32_t{*at++} << 7;
    }
    if (++value >= kRansScale) return nullptr;
    (*frequencies)[s] = static_cast<uint16_t>(value);
    sum += value;
  }
  return sum == kRansScale ? at : nullptr;
}

}  // namespace fsccl
