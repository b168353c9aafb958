// The parser of byte counts as people write them, in settings, in rules and in the options of
// programs: "65536", "64K", "4GB", "1.5GiB". A unit is a power of 1024. It may be in upper or lower
// case, and B or iB may follow it.
#pragma once
#include <charconv>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/ascii.h"

namespace fsccl {

// Returns nothing if the text is not such a number, or if the number is negative, is not a whole
// number of bytes, or is 2^63 or more.
inline std::optional<uint64_t> parse_byte_size(std::string_view text) {
  const char* const end = text.data() + text.size();
  if (text.empty() || text[0] < '0' || text[0] > '9') return std::nullopt;
  int64_t whole = 0;
  double value = 0;
  const auto [after_whole, whole_error] = std::from_chars(text.data(), end, whole);
  const auto [after, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (whole_error != std::errc() || error != std::errc()) return std::nullopt;
  std::string unit(after, end);
  for (char& letter : unit) letter = ascii::upper(letter);
  if (unit.size() == 3 && unit.ends_with("IB")) unit.resize(1);
  if (unit.ends_with("B")) unit.pop_back();
  const size_t power = unit.empty() ? 0 : std::string_view("KMGT").find(unit[0]) + 1;
  if (unit.size() > 1 || (!unit.empty() && power == 0)) return std::nullopt;
  const int64_t factor = int64_t{1} << (10 * power);
  if (after_whole == after) {
    if (__builtin_mul_overflow(whole, factor, &whole)) return std::nullopt;
    return static_cast<uint64_t>(whole);
  }
  const double bytes = value * static_cast<double>(factor);
  if (bytes >= 0x1p63 || bytes != std::floor(bytes)) return std::nullopt;
  return static_cast<uint64_t>(bytes);
}

}  // namespace fsccl
