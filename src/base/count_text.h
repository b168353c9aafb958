// The text of a count in an error. A count that exceeds every memory was a negative number before a
// program or a binding converted it, so it is shown as that negative number.
#pragma once
#include <cstdint>
#include <string>

namespace fsccl {

inline std::string count_text(uint64_t count) {
  return count >> 63 ? std::to_string(static_cast<int64_t>(count)) + " (negative)"
                     : std::to_string(count);
}

}  // namespace fsccl
