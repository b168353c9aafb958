// Estimates how much memory this process can still get before the system starts to kill processes.
// It is the least of what the machine has available and of what each memory control group above the
// process has left. A limit that cannot be read is left out.
#pragma once
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fsccl {

struct AvailableMemory {
  uint64_t bytes = UINT64_MAX;  // bytes that can still be had
  uint64_t total = UINT64_MAX;  // memory of the machine or group that limits
  std::string source;           // name of the limit, for messages; empty if none could be read
};

// `root` is put before /proc and /sys, for tests.
AvailableMemory available_memory(const std::string& root = "");

// Returns an error, which names the bytes wanted and available, if `bytes` bytes more could bring
// the machine, or a control group of this process, to the point at which the system kills
// processes.
Status check_available(uint64_t bytes);

}  // namespace fsccl
