// Letters and control characters of ASCII. The functions of <cctype> depend on the locale that the
// program has set: in a Turkish one the upper case of "i" is not "I".
#pragma once
#include <algorithm>
#include <string_view>

namespace fsccl::ascii {

constexpr bool is_upper(char c) { return c >= 'A' && c <= 'Z'; }
constexpr bool is_lower(char c) { return c >= 'a' && c <= 'z'; }
constexpr bool is_digit(char c) { return c >= '0' && c <= '9'; }
constexpr bool is_alphanumeric(char c) { return is_upper(c) || is_lower(c) || is_digit(c); }
constexpr bool is_control(char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }
constexpr char lower(char c) { return is_upper(c) ? static_cast<char>(c + ('a' - 'A')) : c; }
constexpr char upper(char c) { return is_lower(c) ? static_cast<char>(c - ('a' - 'A')) : c; }

constexpr bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](char x, char y) { return lower(x) == lower(y); });
}

}  // namespace fsccl::ascii
