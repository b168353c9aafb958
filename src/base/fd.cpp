#include "base/fd.h"

#include <fcntl.h>

#include <cerrno>

namespace fsccl {

int above_standard(int fd) {
  if (fd < 0 || fd > STDERR_FILENO) return fd;
  const int copy = ::fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int saved_errno = errno;
  ::close(fd);
  errno = saved_errno;
  return copy;
}

StandardNumbersTaken::StandardNumbersTaken() {
  const int saved_errno = errno;
  // open() returns the lowest free number, so each call fills one gap, and never replaces a
  // descriptor that another thread opens at the same time.
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int got = ::open("/", O_PATH | O_CLOEXEC);
    if (got < 0) break;
    if (got <= STDERR_FILENO)
      taken_[static_cast<size_t>(got)] = true;
    else
      ::close(got);
  }
  errno = saved_errno;
}

StandardNumbersTaken::~StandardNumbersTaken() {
  const int saved_errno = errno;
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
    if (!taken_[static_cast<size_t>(fd)]) continue;
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags >= 0 && (flags & O_PATH)) ::close(fd);
  }
  errno = saved_errno;
}

}  // namespace fsccl
