#include "info_error.h"

#include <fmt/format.h>

#include <cstdio>

std::string last_error() {
  fsccl_error_info_t info = FSCCL_ERROR_INFO_INIT;
  fsccl_last_error(&info);
  return info.text;
}

bool failed(fsccl_status_t status, const std::string& concerning) {
  if (status == FSCCL_OK) return false;
  fmt::print(stderr, "fsccl-info: {}{}\n", concerning, last_error());
  return true;
}
