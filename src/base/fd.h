// A file descriptor that closes itself, and the one way in which the library makes descriptors.
// Every descriptor of the library is an Fd, is opened with CLOEXEC, and has a number above 2:
// numbers 0, 1 and 2 belong to the program's standard streams also while the program has closed
// them. A library descriptor with such a number would receive what the program or a log line writes
// there.
#pragma once
#include <unistd.h>

#include <array>
#include <utility>

namespace fsccl {

// Returns `fd`, or, where its number is 0, 1 or 2, a copy with a higher number after closing it. -1
// with errno where there is none.
int above_standard(int fd);

// Closes it. A simulation has its own (transports/sim).
void close_fd(int fd);

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(above_standard(fd)) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  ~Fd() { reset(); }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0) close_fd(std::exchange(fd_, -1));
  }

 private:
  int fd_ = -1;
};

// Takes those of the numbers 0, 1 and 2 that are closed, so that nothing else gets them while this
// object lives. The placeholder answers reads and writes with EBADF, as a closed descriptor does,
// and is closed in programs that are started by exec. It keeps errno. A number that the program
// gave to another file meanwhile stays as it is. Safe after fork(): there is no lock.
class StandardNumbersTaken {
 public:
  StandardNumbersTaken();
  ~StandardNumbersTaken();
  StandardNumbersTaken(const StandardNumbersTaken&) = delete;
  StandardNumbersTaken& operator=(const StandardNumbersTaken&) = delete;
  void for_good() { taken_ = {}; }  // the placeholders stay until the process ends

 private:
  std::array<bool, 3> taken_{};
};

// For libraries of others that open descriptors whenever they like: from now on none of theirs gets
// the number of a standard stream that is closed at this moment.
inline void take_standard_numbers_for_good() { StandardNumbersTaken().for_good(); }

// The descriptor that `make`, one call of the system, returns. Meanwhile the standard numbers are
// taken: a copy made afterwards would leave a moment in which another thread's log line gets into
// the new file. errno is that of `make` where it fails.
template <class Make>
Fd make_fd(Make make) {
  const StandardNumbersTaken taken;
  return Fd(static_cast<int>(make()));
}

}  // namespace fsccl
