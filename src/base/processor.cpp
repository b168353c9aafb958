#include "base/processor.h"

#include <algorithm>

#include "base/small_file.h"

namespace fsccl {

std::string processor_field(std::string_view info, std::string_view key) {
  for (size_t begin = 0; begin < info.size();) {
    const std::string_view line = info.substr(begin, info.find('\n', begin) - begin);
    begin += line.size() + 1;
    const size_t colon = line.find(": ");
    if (!line.starts_with(key) || colon == line.npos ||
        line.find_first_not_of(" \t", key.size()) != colon)
      continue;
    std::string value(line.substr(colon + 2));
    std::replace_if(
        value.begin(), value.end(),
        [](char c) { return c < ' ' || c > '~' || c == '"' || c == '\\'; }, ' ');
    return value;
  }
  return "";
}

std::string processor_model(std::string_view info) {
  std::string text;
  for (const char* const key :
       {"vendor_id", "cpu family", "model", "model name", "stepping", "CPU implementer",
        "CPU architecture", "CPU variant", "CPU part", "CPU revision"})
    if (const std::string value = processor_field(info, key); !value.empty())
      text += (text.empty() ? "" : ", ") + std::string(key) + ' ' + value;
  return text.empty() ? "unknown processor" : text;
}

std::string processor_info() { return read_start("/proc/cpuinfo"); }

}  // namespace fsccl
