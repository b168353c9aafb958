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

// Returns `fd`. If its number is 0, 1 or 2, makes a copy with a higher number, closes `fd` and
// returns the copy. Returns -1 with errno if no copy can be made.
int above_standard(int fd);

// Closes the descriptor. A simulation has its own version of this function (transports/sim).
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

// Occupies those of the numbers 0, 1 and 2 that are closed, so that no other descriptor gets them
// while this object lives. The placeholder answers reads and writes with EBADF, as a closed
// descriptor does, and exec closes it. The constructor and the destructor keep errno. If the
// program gives such a number to another file meanwhile, that file stays. The class is safe after
// fork() because it uses no lock.
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

// From now on no descriptor gets the number of a standard stream that is closed at this moment.
// This is for libraries of others, which may open descriptors at any time.
inline void take_standard_numbers_for_good() { StandardNumbersTaken().for_good(); }

// Returns the descriptor that `make` returns, where `make` is one system call. The standard numbers
// are occupied during the call. If the descriptor were copied to a higher number after the call
// instead, another thread's log line could get into the new file in between. If `make` fails, errno
// is that of `make`.
template <class Make>
Fd make_fd(Make make) {
  const StandardNumbersTaken taken;
  return Fd(static_cast<int>(make()));
}

}  // namespace fsccl
