// The code and the text of an error that another process sent. Neither is trusted.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "fsccl/fsccl.h"

namespace fsccl {

// Returns the code if it is that of an error, and FSCCL_ERR_PROTOCOL otherwise. So a failure cannot
// be taken for a success, or for progress.
inline fsccl_status_t told_code(int32_t code) {
  return code < 0 && code >= FSCCL_ERR_INTERNAL ? static_cast<fsccl_status_t>(code)
                                                : FSCCL_ERR_PROTOCOL;
}

// Returns the text up to its first null, with a question mark for every character that cannot be
// printed.
inline std::string told_text(std::string_view text) {
  std::string told(text.substr(0, text.find('\0')));
  for (char& letter : told)
    if (letter < ' ' || letter > '~') letter = '?';
  return told;
}

}  // namespace fsccl
