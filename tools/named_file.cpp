#include "named_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>

#include "base/ascii.h"

namespace {

std::string in_lower_case(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), fsccl::ascii::lower);
  return text;
}

}  // namespace

std::optional<std::string> find_named(const std::string& name, const char* kind,
                                      const std::vector<std::string>& folders) {
  if (name.find('/') != std::string::npos || name.ends_with(".json")) return name;
  std::set<std::string> known;
  std::optional<std::string> alike;
  for (const std::string& folder : folders) {
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(folder, failed)) {
      if (entry.path().extension() != ".json") continue;
      if (entry.path().stem() == name) return entry.path().string();
      if (in_lower_case(entry.path().stem().string()) == in_lower_case(name))
        alike = entry.path().string();
      known.insert(entry.path().stem().string());
    }
  }
  if (alike) return alike;
  fmt::print(stderr,
             "fsccl-info: no {} is named \"{}\"; known are: {}. The name of a file must end in "
             ".json or have a slash\n",
             kind, name,
             known.empty() ? fmt::format("none (looked in {})", fmt::join(folders, ", "))
                           : fmt::format("{}", fmt::join(known, ", ")));
  return std::nullopt;
}
