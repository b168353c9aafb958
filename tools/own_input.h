// Keeps the programs from replacing a file that they read.
#pragma once
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <string>

// Checks the name of a file for an option. "-" would not be the standard output here.
inline std::string file_name_problem(const std::string& name) {
  if (name.empty()) return "a file has no name";
  if (name.starts_with("--")) return "give the name of a file: " + name + " is an option";
  return name == "-" ? "give the name of a file: this does not go to the standard output" : "";
}

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
