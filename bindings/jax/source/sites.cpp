#include "sites.h"

#include <cctype>
#include <map>
#include <mutex>

namespace fsccl_jax {
namespace {

constexpr std::string_view kMark = "site 0x";
constexpr size_t kDigits = 16;

std::mutex names_lock;
std::map<uint64_t, std::string> names;

uint64_t hash(std::string_view name) {
  uint64_t value = 0xcbf29ce484222325;
  for (const char letter : name)
    value = (value ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
  return value ^ value >> 32;
}

std::string named(uint64_t number) {
  const std::lock_guard guard(names_lock);
  const auto found = names.find(number & ~uint64_t{0xffff});
  if (found == names.end()) return "";
  return "call " + std::to_string(number & 0xffff) + " of \"" + found->second + "\"";
}

}  // namespace

uint64_t site_of(std::string_view name) {
  // 0 is FSCCL's number for no site
  const uint64_t number = (hash(name) | 1) << 16;
  const std::lock_guard guard(names_lock);
  const auto [entry, fresh] = names.try_emplace(number, name);
  return fresh || entry->second == name ? number : 0;
}

std::string with_names(std::string text) {
  for (size_t at = text.find(kMark); at != std::string::npos; at = text.find(kMark, at + 1)) {
    const size_t first = at + kMark.size();
    size_t end = first;
    while (end < text.size() && end - first < kDigits &&
           std::isxdigit(static_cast<unsigned char>(text[end])) != 0)
      ++end;
    if (end - first != kDigits) continue;
    const std::string name = named(std::stoull(text.substr(first, kDigits), nullptr, 16));
    if (!name.empty()) text.replace(at, end - at, name);
  }
  return text;
}

}  // namespace fsccl_jax
