// A callback that keeps what the library writes.
#pragma once
#include <cstddef>
#include <string>

// `text` is a std::string.
inline void keep_text(void* text, const char* written, size_t bytes) {
  static_cast<std::string*>(text)->assign(written, bytes);
}
