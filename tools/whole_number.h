// Reads whole numbers of options. CLI11's own reader takes 016 for an octal number.
#pragma once
#include <CLI/CLI.hpp>
#include <optional>
#include <string>

// Returns the number if the text has only decimal digits and the number is in the range.
std::optional<int> whole_number(const std::string& text, int least, int most);
// Accepts such numbers, for CLI::Option::transform().
CLI::Validator whole_from_to(int least, int most);
