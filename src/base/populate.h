// Touches pages of a writable mapping ahead of their use, so that the first store to each is no
// fault. Systems that do not know the advice refuse it, and the faults come later.
#pragma once
#include <sys/mman.h>

#include <cstddef>

// The headers of some supported systems lack this constant.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace fsccl {

inline void populate(void* begin, size_t bytes) { madvise(begin, bytes, MADV_POPULATE_WRITE); }

}  // namespace fsccl
