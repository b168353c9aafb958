// Calls that write to a file or make it larger. The system answers some of them with a signal that
// ends the process: SIGXFSZ where the file passes the limit of file sizes (ulimit -f), which counts
// for shared memory, too, and SIGPIPE where nobody reads a pipe any more. Here both are errors:
// EFBIG and EPIPE.
#pragma once
#include <signal.h>

#include <cstdint>
#include <string_view>

namespace fsccl {

// Keeps the two signals from the calling thread while this object lives. It keeps errno.
class FileSignalsHeld {
 public:
  FileSignalsHeld();
  ~FileSignalsHeld();
  FileSignalsHeld(const FileSignalsHeld&) = delete;
  FileSignalsHeld& operator=(const FileSignalsHeld&) = delete;

 private:
  sigset_t before_;   // the signals that the thread blocked before
  sigset_t to_take_;  // SIGXFSZ and SIGPIPE, as far as they were not pending before
};

// All of `bytes`. A pipe or a terminal that takes nothing for `patience_ms` is EAGAIN. Returns 0 or
// an error number.
int write_all(int fd, std::string_view bytes, int64_t patience_ms = 0);

// ftruncate(). Returns 0 or an error number.
int resize_file(int fd, uint64_t bytes);

}  // namespace fsccl
