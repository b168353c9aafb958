// Records the kernels and copies that a GPU runs for this process. CUPTI makes the records; it is
// loaded if it is installed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl::perf {

struct TracedCopy {
  uint64_t bytes, begin_ns, end_ns;  // the clock is the same for all processes
};
struct Traced {
  uint64_t kernels = 0;
  std::vector<TracedCopy> copies;  // sorted by begin_ns
};

// Begins to record. It must be called before the process first uses CUDA. Without CUPTI it returns
// false, and *why says what is missing.
bool trace_kernels(std::string* why);
// Returns the records so far. The device must have finished all work.
Traced traced();

}  // namespace fsccl::perf
