// In a build with AddressSanitizer, these functions tell it which memory of a pool nobody may touch
// now. In other builds they do nothing.
#pragma once
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#define FSCCL_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define FSCCL_ASAN 1
#endif
#endif
#ifdef FSCCL_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace fsccl {

inline void forbid_memory([[maybe_unused]] const void* begin, [[maybe_unused]] uint64_t bytes) {
#ifdef FSCCL_ASAN
  ASAN_POISON_MEMORY_REGION(begin, bytes);
#endif
}
inline void allow_memory([[maybe_unused]] const void* begin, [[maybe_unused]] uint64_t bytes) {
#ifdef FSCCL_ASAN
  ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#endif
}

}  // namespace fsccl
