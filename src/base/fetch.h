// Lines of memory that this core is about to write, fetched from the cores that have read them last. A core's stores leave it in
// order, each only when its line is there, so the first that has to come from afar holds up all behind it; lines that are asked for
// beforehand come all at once, and while something else is done.
#pragma once
#include <cstddef>
#include <cstdint>

namespace fsccl {

inline void fetch_to_write(void* begin, size_t bytes) {
  constexpr size_t kLine = 64;
  auto* const first = static_cast<unsigned char*>(begin);
  for (size_t at = 0; at < bytes; at += kLine) {
#if defined(__x86_64__)
    asm volatile("prefetchw %0" ::"m"(first[at]));  // the builtin only reads, for processors that lack this, where it does nothing
#else
    __builtin_prefetch(first + at, 1);
#endif
  }
}

}  // namespace fsccl
