// The speed of the machine itself, as a limit for results. All ranks at the same time copy memory,
// or read it to sum it, each in its own buffers of `bytes` bytes. The two rates give the least time
// of any operation that must read and write so many bytes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "session.h"

namespace fsccl::perf {

constexpr uint64_t kLeastLimitBytes = 1024;  // for fewer bytes only the clock would be measured

struct MachineLimit {
  uint64_t bytes = 0;
  double copy_gb_per_s = 0, read_gb_per_s = 0;  // bytes copied and read by all ranks together
};
// Measures the rates; all ranks call it. A copy is memcpy or stores that bypass the caches,
// whichever is faster. Nothing is measured if the two buffers of each rank do not fit in memory;
// limit_left_out() says so in words.
std::optional<MachineLimit> measure_limit(const Session& session, uint64_t bytes);
std::string limit_left_out(uint64_t bytes);

// Returns the highest possible GB/s of an operation in which all ranks together read `reads` and
// write `writes` bytes for each byte of its size. Each written byte counts as a copy, and bytes
// read beyond those copies count as read.
double limit_rate(const MachineLimit& limit, double reads, double writes);

}  // namespace fsccl::perf
