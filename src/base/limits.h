// The limits of this process, which the system, its user and its container set. Each limit has the
// name under which an administrator can raise it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl {

inline constexpr uint64_t kUnlimited = UINT64_MAX;

struct Limit {
  uint64_t value = kUnlimited;
  std::string name;  // "the limit of open files (ulimit -n)"
};

struct Limits {
  Limit open_files;
  Limit locked_bytes;
  Limit address_space_bytes;
  Limit memory_bytes;            // all memory: the machine's, or the container's limit if lower
  Limit memory_available_bytes;  // the memory available now, without evicting other processes
  // The number of cores, at least 1: those of the affinity mask, or the container's quota (rounded
  // up) if it is lower.
  Limit cores;
  Limit core_quota;  // the container's quota alone, rounded up
};

// Reads /proc and the cgroup (v2) below `root`, which is "" outside of tests. A file that cannot be
// read sets no limit.
Limits read_limits(const std::string& root = "");

// Returns the numbers of the processors on which the calling thread may run, or none if the system
// does not say.
std::vector<int> affinity();

// Returns the bytes of a page of memory.
uint64_t page_bytes();

// Returns a text such as "the limit of open files (ulimit -n) is 1024".
std::string limit_text(const Limit& limit);

}  // namespace fsccl
