#include "base/status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>

namespace fsccl {

void Status::End::operator()(Error* error) const { delete error; }

Status fail_errno(int error_number, const std::string& what) {
  const bool limit = error_number == EMFILE || error_number == ENFILE || error_number == EFBIG;
  const bool memory = error_number == ENOMEM || error_number == ENOSPC;
  const fsccl_status_t code = limit    ? FSCCL_ERR_LIMIT
                              : memory ? FSCCL_ERR_OUT_OF_MEMORY
                                       : FSCCL_ERR_SYSTEM;
  return fail(code, "{}: {}{}", what, std::strerror(error_number), advice_for(error_number));
}

std::string advice_for(int error_number) {
  rlimit limit{};
  switch (error_number) {
    case EMFILE:
      if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return "; raise the limit of open files (ulimit -n)";
      return fmt::format("; the limit of open files (ulimit -n) is {}: raise it, or close some",
                         limit.rlim_cur);
    case ENFILE:
      return "; the machine's limit of open files (fs.file-max) is reached";
    case EFBIG:
      if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "";
      return fmt::format(
          "; raise the limit of file sizes (RLIMIT_FSIZE, ulimit -f): it is {} bytes, and counts "
          "for shared memory, too",
          limit.rlim_cur);
    default:
      return "";
  }
}

fsccl_status_t report(const Status& status, char* text, size_t capacity) {
  if (!status.ok() && capacity)
    *fmt::format_to_n(text, capacity - 1, "{}", status.text()).out = '\0';
  return status.code();
}

}  // namespace fsccl
