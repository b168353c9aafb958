// The speed of the machine itself, as a limit for results: all ranks at the same time copy memory,
// or read it (a sum), each in buffers of its own of `bytes` bytes. The two give the least time of
// any operation that must read and write so many bytes.
#pragma once
#include <cstdint>

#include "session.h"

namespace fsccl::perf {

constexpr uint64_t kLeastLimitBytes = 1024;  // below, the clock is all that would be measured

struct MachineLimit {
  uint64_t bytes = 0;
  double copy_gb_per_s = 0, read_gb_per_s = 0;  // all ranks together: bytes copied, bytes read
};
// All ranks call it. Copies are memcpy or, where that is faster, stores that bypass the caches.
MachineLimit measure_limit(const Session& session, uint64_t bytes);

// GB/s of something that reads `reads` and writes `writes` bytes, all ranks together, for each of
// its own bytes: every byte that is written counts as a copy, and what is read beyond that as read.
double limit_rate(const MachineLimit& limit, double reads, double writes);

}  // namespace fsccl::perf
