// The text of a status that the last call of this thread returned, for the bindings in C++.
// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fsccl/fsccl.h>

#include <string>

namespace fsccl_bindings {

inline std::string last_error(fsccl_status_t status) {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  std::string text;
  if (fsccl_last_error(&info) == FSCCL_OK && info.code == status) {
    if (info.rank >= 0) text += "rank " + std::to_string(info.rank) + ": ";
    text += std::string(info.operation) + ": " + info.text + " ";
  }
  return text + "[" + fsccl_status_string(status) + "]";
}

}  // namespace fsccl_bindings
