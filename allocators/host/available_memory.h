// How much memory this process can still get before the system starts to kill processes: the
// smaller of what the machine has available and what is left under each memory control group above
// the process. An estimate, never a promise; what cannot be read does not limit.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fsccl {

struct AvailableMemory {
  uint64_t bytes = UINT64_MAX;  // can still be had
  uint64_t total = UINT64_MAX;  // memory of the machine or group that limits
  std::string source;           // name of the limit, for messages; empty when nothing could be read
};

// `root` goes before /proc and /sys (tests).
AvailableMemory available_memory(const std::string& root = "");

// An error, naming bytes wanted and available, when `bytes` more would bring the machine, or a
// control group of this process, to the point where the system kills.
Status check_available(uint64_t bytes);

}  // namespace fsccl
