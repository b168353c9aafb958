// Counts the kernels and copies that a GPU has run for this process, as CUPTI records them; CUPTI is loaded when it is there.
#pragma once
#include <cstdint>
#include <string>

namespace fsccl::perf {

struct Traced {
  uint64_t kernels = 0, copies = 0;
};

// Begins to record. False, and why, without CUPTI. Before the process's first use of CUDA.
bool trace_kernels(std::string* why);
// What has been recorded so far; the device has nothing left to do.
Traced traced();

}  // namespace fsccl::perf
