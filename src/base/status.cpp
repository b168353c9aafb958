#include "base/status.h"

#include <cerrno>
#include <cstring>

namespace fsccl {

Status fail_errno(int error_number, const std::string& what) {
  const bool limit = error_number == EMFILE || error_number == ENFILE;
  const bool memory = error_number == ENOMEM || error_number == ENOSPC;
  const fsccl_status_t code = limit ? FSCCL_ERR_LIMIT : memory ? FSCCL_ERR_OUT_OF_MEMORY : FSCCL_ERR_SYSTEM;
  const char* advice = limit ? "; raise the limit of open files (ulimit -n)" : "";
  return fail(code, "{}: {}{}", what, std::strerror(error_number), advice);
}

fsccl_status_t report(const Status& status, char* text, size_t capacity) {
  if (!status.ok() && capacity) *fmt::format_to_n(text, capacity - 1, "{}", status.text()).out = '\0';
  return status.code();
}

}  // namespace fsccl
