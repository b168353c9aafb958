// Lines of memory, asked for before they are needed: they come all at once, and while something
// else is done.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline constexpr size_t kFetchedLine = 64;

inline void fetch_to_read(const void* begin, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kFetchedLine)
    __builtin_prefetch(static_cast<const unsigned char*>(begin) + at);
}

// From the cores that have read them last. A core's stores leave it in order, each only when its
// line is there, so the first that has to come from afar holds up all behind it.
inline void fetch_to_write(void* begin, size_t bytes) {
  auto* const first = static_cast<unsigned char*>(begin);
  for (size_t at = 0; at < bytes; at += kFetchedLine) {
#if defined(__x86_64__)
    // the builtin only reads, for processors that lack this, where it does nothing
    asm volatile("prefetchw %0" ::"m"(first[at]));
#else
    __builtin_prefetch(first + at, 1);
#endif
  }
}

}  // namespace fsccl
