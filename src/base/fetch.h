// Prefetches memory, so that all its cache lines arrive at the same time and while the caller does
// other work.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr size_t kFetchedLine = 64;

inline void fetch_to_read(const void* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kFetchedLine)
    __builtin_prefetch(static_cast<const unsigned char*>(begin) + at);
}

// Fetches the cache lines for writing from the cores that have read them last. The stores of a core
// take effect in order, so one store whose line has to come from another core delays all later
// stores.
inline void fetch_to_write(void* begin, size_t bytes) {
  auto* const first = static_cast<unsigned char*>(begin);
  for (size_t at = 0; at < bytes; at += kFetchedLine) {
#if defined(__x86_64__)
    // The builtin would only fetch for reading. On processors without this instruction, it does
    // nothing.
    asm volatile("prefetchw %0" ::"m"(first[at]));
#else
    __builtin_prefetch(first + at, 1);
#endif
  }
}

}  // namespace fsccl
