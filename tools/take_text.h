// Takes the texts that functions of the library give to a callback.
#pragma once
#include <cstddef>
#include <string>

// `to` is a std::string.
inline void take_text(void* to, const char* text, size_t bytes) {
  static_cast<std::string*>(to)->assign(text, bytes);
}
