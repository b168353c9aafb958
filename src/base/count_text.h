// Counts in errors. One beyond any memory was a negative number once, in a program or a binding
// that subtracts, and is shown as such.
#pragma once
#include <cstdint>
#include <string>

namespace fsccl {

inline std::string count_text(uint64_t count) {
  return count >> 63 ? std::to_string(static_cast<int64_t>(count)) + " (negative)"
                     : std::to_string(count);
}

}  // namespace fsccl
