#include "base/limits.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <vector>

#include "base/small_file.h"

namespace fsccl {
namespace {

Limit resource(__rlimit_resource_t which, const char* name) {
  rlimit value;
  Limit limit{kUnlimited, name};
  if (getrlimit(which, &value) == 0 && value.rlim_cur != RLIM_INFINITY)
    limit.value = value.rlim_cur;
  return limit;
}

// Returns the number at the start of the text, after blanks, or kUnlimited if there is none, as in
// "max" or if the file does not exist.
uint64_t first_number(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t\n"), text.size()));
  uint64_t number = kUnlimited;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// Returns the bytes in a line such as "MemTotal:  123 kB" of /proc/meminfo.
uint64_t meminfo_bytes(std::string_view meminfo, std::string_view key) {
  const size_t found = meminfo.find(key);
  if (found == std::string_view::npos) return kUnlimited;
  const uint64_t kib = first_number(meminfo.substr(found + key.size()));
  return kib > kUnlimited / 1024 ? kUnlimited : kib * 1024;
}

// Returns the directories of this process's cgroup, from itself to the root. Each of them may have
// limits.
std::vector<std::string> cgroup_directories(const std::string& root) {
  const std::string text = read_small_file(root + "/proc/self/cgroup");
  const size_t found = text.starts_with("0::") ? 0 : text.find("\n0::");
  if (found == std::string::npos) return {};
  const size_t begin = text.find("::", found) + 2;
  std::string path = text.substr(begin, text.find('\n', begin) - begin);
  std::vector<std::string> directories;
  while (true) {
    while (path.ends_with('/')) path.pop_back();
    directories.push_back(fmt::format("{}/sys/fs/cgroup{}", root, path));
    if (path.empty()) return directories;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

void lower(Limit* limit, uint64_t value, const std::string& name) {
  if (value < limit->value) *limit = {value, name};
}

void apply_cgroup_memory(const std::string& directory, Limits* limits) {
  const std::string file = directory + "/memory.max";
  const uint64_t maximum = first_number(read_small_file(file));
  if (maximum == kUnlimited) return;
  const std::string name = fmt::format("the container's memory ({})", file);
  lower(&limits->memory_bytes, maximum, name);
  // The page cache counts as used, but the system gives it up on demand.
  const uint64_t used = first_number(read_small_file(directory + "/memory.current"));
  const std::string statistics = fmt::format("\n{}", read_small_file(directory + "/memory.stat"));
  uint64_t evictable = 0;
  for (const std::string_view field : {"\ninactive_file ", "\nactive_file "})
    if (const size_t found = statistics.find(field); found != std::string::npos)
      evictable += first_number(std::string_view(statistics).substr(found + field.size()));
  if (used == kUnlimited) return;
  const uint64_t held = used - std::min(used, evictable);
  lower(&limits->memory_available_bytes, maximum - std::min(maximum, held), name);
}

void apply_cgroup_cores(const std::string& directory, Limits* limits) {
  const std::string file = directory + "/cpu.max";
  // The file has a quota and a period in microseconds, such as "200000 100000".
  const std::string text = read_small_file(file);
  const uint64_t quota = first_number(text);
  const size_t blank = text.find(' ');
  const uint64_t period =
      blank == std::string::npos ? 0 : first_number(std::string_view(text).substr(blank));
  if (quota == kUnlimited || period == 0 || period == kUnlimited) return;
  const uint64_t cores = std::max<uint64_t>(1, quota / period + (quota % period != 0));
  for (Limit* limit : {&limits->cores, &limits->core_quota})
    lower(limit, cores, fmt::format("the container's cores ({})", file));
}

Limit affinity_cores() {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  Limit limit{online > 0 ? static_cast<uint64_t>(online) : 1, "the cores of the machine"};
  if (const size_t cores = affinity().size())
    lower(&limit, uint64_t{cores}, "the affinity of the process");
  return limit;
}

}  // namespace

// The system refuses a set that is smaller than its own, whose size it does not tell.
std::vector<int> affinity() {
  std::vector<int> processors;
  for (size_t words = 16; words <= 4096; words *= 2) {
    std::vector<uint64_t> set(words);
    if (sched_getaffinity(0, words * sizeof(uint64_t), reinterpret_cast<cpu_set_t*>(set.data())))
      continue;
    for (size_t cpu = 0; cpu < 64 * words; cpu++)
      if (set[cpu / 64] >> (cpu % 64) & 1) processors.push_back(static_cast<int>(cpu));
    break;
  }
  return processors;
}

Limits read_limits(const std::string& root) {
  Limits limits;
  limits.open_files = resource(RLIMIT_NOFILE, "the limit of open files (ulimit -n)");
  limits.locked_bytes = resource(RLIMIT_MEMLOCK, "the limit of locked memory (ulimit -l)");
  limits.address_space_bytes = resource(RLIMIT_AS, "the limit of address space (ulimit -v)");
  const std::string meminfo = read_small_file(root + "/proc/meminfo");
  limits.memory_bytes = {meminfo_bytes(meminfo, "MemTotal:"), "the memory of the machine"};
  limits.memory_available_bytes = {meminfo_bytes(meminfo, "MemAvailable:"),
                                   "the free memory of the machine"};
  limits.cores = affinity_cores();
  for (const std::string& directory : cgroup_directories(root)) {
    apply_cgroup_memory(directory, &limits);
    apply_cgroup_cores(directory, &limits);
  }
  return limits;
}

uint64_t page_bytes() {
  static const uint64_t bytes = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

std::string limit_text(const Limit& limit) {
  return limit.value == kUnlimited ? limit.name + " is not set"
                                   : fmt::format("{} is {}", limit.name, limit.value);
}

}  // namespace fsccl
