// Records the kernels and copies that a GPU has run for this process, as CUPTI records them; CUPTI
// is loaded when it is there.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace fsccl::perf {

struct TracedCopy {
  uint64_t bytes, begin_ns, end_ns;  // by one clock for all processes
};
struct Traced {
  uint64_t kernels = 0;
  std::vector<TracedCopy> copies;  // in the order of their begins
};

// Begins to record. False, and why, without CUPTI. Before the process's first use of CUDA.
bool trace_kernels(std::string* why);
// Returns the records so far; the device has nothing left to do.
Traced traced();

}  // namespace fsccl::perf
