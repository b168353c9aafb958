#include "base/write_file.h"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "base/clock.h"

namespace fsccl {

FileSignalsHeld::FileSignalsHeld() {
  const int saved_errno = errno;
  sigset_t pending;
  sigemptyset(&pending);
  sigpending(&pending);
  sigemptyset(&to_take_);
  for (const int signal : {SIGPIPE, SIGXFSZ})
    if (!sigismember(&pending, signal)) sigaddset(&to_take_, signal);
  pthread_sigmask(SIG_BLOCK, &to_take_, &before_);
  errno = saved_errno;
}

// If a call raised a signal, it is pending in this thread. It is removed before the thread takes
// signals again.
FileSignalsHeld::~FileSignalsHeld() {
  const int saved_errno = errno;
  const timespec now{};
  while (sigtimedwait(&to_take_, nullptr, &now) > 0 || errno == EINTR) {
  }
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  errno = saved_errno;
}

int write_all(int fd, std::string_view bytes, int64_t patience_ms) {
  const FileSignalsHeld held;
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written >= 0) {
      bytes.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EAGAIN) {
      pollfd entry = {fd, POLLOUT, 0};
      const Deadline deadline = Deadline::in_ms(patience_ms);
      int ready = 0;
      do ready = ::poll(&entry, 1, static_cast<int>((deadline.left_ns() + 999'999) / 1'000'000));
      while (ready < 0 && errno == EINTR);
      if (ready <= 0) return EAGAIN;
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

int resize_file(int fd, uint64_t bytes) {
  const FileSignalsHeld held;
  for (;;) {
    if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) return 0;
    if (errno != EINTR) return errno;
  }
}

}  // namespace fsccl
