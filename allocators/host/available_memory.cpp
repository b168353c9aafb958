#include "allocators/host/available_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/small_file.h"

namespace fsccl {
namespace {

constexpr uint64_t kLargestMargin = uint64_t{128} << 20;  // left to the rest of the machine

std::optional<uint64_t> parse_number(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end == text.data()) return std::nullopt;
  return value;
}

// Reads a file that holds one number. Returns nullopt for "max" and for everything else that is not
// a number.
std::optional<uint64_t> read_number(const std::string& path) {
  return parse_number(read_small_file(path));
}

// Returns the number that follows `name` at the beginning of a line.
std::optional<uint64_t> read_field(const std::string& path, std::string_view name) {
  std::istringstream file(read_small_file(path));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return parse_number(std::string_view(line).substr(name.size()));
  }
  return std::nullopt;
}

void consider(AvailableMemory& least, uint64_t bytes, uint64_t total, const std::string& source) {
  if (bytes >= least.bytes) return;
  least = {bytes, total, source};
}

// The names that the files have in the two versions of control groups.
struct GroupFiles {
  const char* limit;
  const char* usage;
  // fields of memory.stat: page cache, which the system drops on demand
  std::array<const char*, 2> cache_fields;
};
constexpr GroupFiles kVersion1 = {"memory.limit_in_bytes",
                                  "memory.usage_in_bytes",
                                  {"total_inactive_file ", "total_active_file "}};
constexpr GroupFiles kVersion2 = {
    "memory.max", "memory.current", {"inactive_file ", "active_file "}};

// Considers the group at mount + path, and all groups above it.
void consider_groups(AvailableMemory& least, const std::string& root, const std::string& mount,
                     std::string path, const GroupFiles& files) {
  while (true) {
    const std::string folder = root + mount + path + "/";
    const std::optional<uint64_t> limit = read_number(folder + files.limit),
                                  usage = read_number(folder + files.usage);
    if (limit && usage) {
      uint64_t cache = 0;
      for (const char* const field : files.cache_fields)
        cache += read_field(folder + "memory.stat", field).value_or(0);
      const uint64_t used = *usage > cache ? *usage - cache : 0;
      consider(least, *limit > used ? *limit - used : 0, *limit,
               "the memory limit of control group " + (path.empty() ? "/" : path));
    }
    if (path.empty()) return;
    path.resize(path.rfind('/'));
  }
}

}  // namespace

AvailableMemory available_memory(const std::string& root) {
  AvailableMemory least;
  const std::string meminfo = root + "/proc/meminfo";
  if (const auto kib = read_field(meminfo, "MemAvailable:")) {
    const uint64_t total_kib = read_field(meminfo, "MemTotal:").value_or(*kib);
    consider(least, *kib * 1024, total_kib * 1024, "the memory of this machine");
  }
  // A line is "number:controllers:/path". Version 2 names no controllers. Inside a container the
  // path may not be visible; then only the files in the mount itself count.
  std::istringstream groups(read_small_file(root + "/proc/self/cgroup"));
  std::string line;
  while (std::getline(groups, line)) {
    const size_t first = line.find(':'),
                 second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path.empty() || path.front() != '/') continue;
    if (path.back() == '/') path.pop_back();
    if (controllers.empty()) consider_groups(least, root, "/sys/fs/cgroup", path, kVersion2);
    if (controllers == "memory")
      consider_groups(least, root, "/sys/fs/cgroup/memory", path, kVersion1);
  }
  return least;
}

Status check_available(uint64_t bytes) {
  const AvailableMemory available = available_memory();
  const uint64_t margin = std::min(kLargestMargin, available.total / 32);
  if (available.source.empty() || (available.bytes > margin && bytes <= available.bytes - margin))
    return success();
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "host arena: wanted {} more bytes, but only {} are available in {} (of which {} are "
              "left to others); use smaller blocks, smaller units or a smaller pool, or give this "
              "process more memory",
              bytes, available.bytes, available.source, margin);
}

}  // namespace fsccl
