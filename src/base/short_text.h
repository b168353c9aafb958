// Texts of errors that are made where there is no memory.
#pragma once
#include <cstddef>
#include <string>

namespace fsccl {

// Returns the text, for which std::string takes no memory: one of at most 15 characters lies in the
// object itself.
template <size_t N>
std::string short_text(const char (&text)[N]) noexcept {
  static_assert(N <= 16, "a longer text needs memory, and there is none");
  return text;
}

}  // namespace fsccl
