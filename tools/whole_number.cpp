#include "whole_number.h"

#include <fmt/format.h>

#include <charconv>

std::optional<int> whole_number(const std::string& text, int least, int most) {
  int value = 0;
  const char* const end = text.data() + text.size();
  const auto [read, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc{} || read != end || text[0] == '-' || value < least || value > most)
    return std::nullopt;
  return value;
}

CLI::Validator whole_from_to(int least, int most) {
  return {[=](std::string& text) -> std::string {
            const std::optional<int> value = whole_number(text, least, most);
            if (!value)
              return fmt::format("{} is no whole number from {} to {}: give decimal digits alone",
                                 text, least, most);
            text = fmt::format("{}", *value);  // 016 is 16
            return "";
          },
          fmt::format("{} TO {}", least, most)};
}
