// Reserves storage for a part of a file, so that no later store into a mapping of it lacks storage.
#pragma once
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/write_file.h"

namespace fsccl {

// Reserves storage from `*from` to `to`. The bytes that the file already has there stay.
// Returns 0 or an error number, and sets `*from` to the end of what was reserved. If a signal
// interrupts a call, the kernel undoes what the call did. The function then makes smaller calls,
// which succeed however often signals come.
inline int reserve_file(int fd, uint64_t* from, uint64_t to) {
  constexpr uint64_t kMost = uint64_t{4} << 20, kLeast = 4096;
  uint64_t step = kMost;
  const FileSignalsHeld held;
  while (*from < to) {
    const uint64_t bytes = std::min(step, to - *from);
    if (fallocate(fd, 0, static_cast<off_t>(*from), static_cast<off_t>(bytes)) == 0)
      *from += bytes;
    else if (errno != EINTR)
      return errno;
    else
      step = std::max(bytes / 2, kLeast);
  }
  return 0;
}

}  // namespace fsccl
