// A set of processors as sched_setaffinity() takes it. cpu_set_t has room for 1024 processors only.
#pragma once
#include <cstddef>
#include <vector>

namespace fsccl::perf {

// Returns the set that has this processor alone.
inline std::vector<unsigned long> only_processor(int number) {
  constexpr size_t kBits = 8 * sizeof(unsigned long);
  const auto bit = static_cast<size_t>(number);
  std::vector<unsigned long> set(bit / kBits + 1);
  set.back() = 1ul << bit % kBits;
  return set;
}

}  // namespace fsccl::perf
