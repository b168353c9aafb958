// The limits of this process: those of the system, of its user and of its container, each with the
// name under which its owner can raise it.
#pragma once
#include <cstdint>
#include <string>

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
  Limit memory_bytes;            // in all: the machine's, or less by the container
  Limit memory_available_bytes;  // now, without evicting somebody
  // at least 1: affinity, or less by the container's quota (rounded up)
  Limit cores;
};

// Reads /proc and the cgroup (v2) below `root`, which is "" outside of tests. A file that cannot be
// read sets no limit.
Limits read_limits(const std::string& root = "");

// Returns the bytes of a page of memory.
uint64_t page_bytes();

// "the limit of open files (ulimit -n) is 1024"
std::string limit_text(const Limit& limit);

}  // namespace fsccl
