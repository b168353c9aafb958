// Keeps the programs from replacing a file that they read.
#pragma once
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>

// Returns true, after a line on the standard error, if the output is the same file as the input,
// whatever links lead to it. An empty name is that of no file.
inline bool replaces(const std::string& output, const std::string& input) {
  std::error_code failed;
  if (output.empty() || input.empty() || !std::filesystem::is_regular_file(output, failed) ||
      !std::filesystem::equivalent(output, input, failed))
    return false;
  fmt::print(stderr, "{} is read here and would be replaced: give the output another name\n",
             output);
  return true;
}
