#include "option_names.h"

#include <fmt/format.h>

#include <array>
#include <utility>

#include "base/ascii.h"

namespace {

constexpr std::array<std::pair<const char*, const char*>, 12> kOptions{
    {{"shard_over", "--sharding"},
     {"keep_bytes", "--keep"},
     {"by_parameter", "--by-parameter"},
     {"memory_limit_bytes", "--memory-limit"},
     {"experts_per_token", "--experts-per-token"},
     {"codec_ratio", "--codec-ratio"},
     {"codec_gb_per_s", "--codec-rate"},
     {"measured_communication_s", "--measured-communication"},
     {"tflops", "--tflops"},
     {"efficiency", "--efficiency"},
     {"carrier", "--carrier"},
     {"topology", "--topology"}}};

// Keys that are no words of English stand without quotation marks, too.
bool is_bare(const std::string& text, size_t at, const std::string& key) {
  const auto joins = [&](size_t i) {
    return i < text.size() && (fsccl::ascii::is_alphanumeric(text[i]) ||
                               std::string_view("_.\"/-").find(text[i]) != std::string_view::npos);
  };
  return key.find('_') != std::string::npos && (at == 0 || !joins(at - 1)) &&
         !joins(at + key.size());
}

}  // namespace

std::string with_option_names(std::string text) {
  if (text.find("known are") != std::string::npos) return text;  // it is about the keys of a file
  for (const auto& [name, option] : kOptions) {
    const std::string key = name, both = fmt::format("{} (in a file \"{}\")", option, key);
    for (size_t at = 0; (at = text.find(key, at)) != std::string::npos;) {
      const bool quoted = at > 0 && text[at - 1] == '"' && text[at + key.size()] == '"';
      if (!quoted && !is_bare(text, at, key)) {
        at += key.size();
        continue;
      }
      const size_t begin = at - (quoted ? 1 : 0);
      text.replace(begin, key.size() + (quoted ? 2 : 0), both);
      at = begin + both.size();
    }
  }
  return text;
}
