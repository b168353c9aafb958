#include "base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace fsccl {

Status fail_errno(int error_number, const std::string& what) {
  const bool limit = error_number == EMFILE || error_number == ENFILE;
  const bool memory = error_number == ENOMEM || error_number == ENOSPC;
  const fsccl_status_t code = limit ? FSCCL_ERR_LIMIT : memory ? FSCCL_ERR_OUT_OF_MEMORY : FSCCL_ERR_SYSTEM;
  rlimit files = {};
  std::string advice;
  if (error_number == EMFILE && getrlimit(RLIMIT_NOFILE, &files) == 0)
    advice = fmt::format("; the limit of open files (ulimit -n) is {}: raise it, or close some", files.rlim_cur);
  else if (limit)
    advice = "; the machine's limit of open files (fs.file-max) is reached";
  return fail(code, "{}: {}{}", what, std::strerror(error_number), advice);
}

fsccl_status_t report(const Status& status, char* text, size_t capacity) {
  if (!status.ok() && capacity) *fmt::format_to_n(text, capacity - 1, "{}", status.text()).out = '\0';
  return status.code();
}

}  // namespace fsccl
