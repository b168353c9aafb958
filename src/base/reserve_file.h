// Storage for a part of a file, so that no later store meets a shortage.
#pragma once
#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>

#include "base/write_file.h"

namespace fsccl {

// Reserves memory until `*from` is `to`; a part that has it already keeps what is in it. Returns 0
// or an error number, and `*from` says how far it came. A signal makes the kernel undo what an
// unfinished call did, so smaller calls are made then: they get through however often signals come.
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
