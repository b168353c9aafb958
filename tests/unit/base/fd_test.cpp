// Tests descriptors of a process that has closed some of its standard streams. Each case runs in a
// child of its own.
#include "base/fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <functional>

#include "base/log.h"
#include "base/small_file.h"
#include "base/socket.h"

namespace fsccl {
namespace {

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

// Runs `holds` in a child for each subset of 0, 1 and 2, which are closed there. A bit of `closed`
// says that its number is closed.
void for_each_subset(const std::function<bool(int closed)>& holds) {
  for (int closed = 0; closed < 8; closed++)
    EXPECT_EXIT(
        {
          for (int fd = 0; fd < 3; fd++)
            if (closed & (1 << fd)) ::close(fd);
          std::_Exit(holds(closed) ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << "closed: " << closed;
}

bool as_before(int closed) {
  for (int fd = 0; fd < 3; fd++)
    if (is_open(fd) == static_cast<bool>(closed & (1 << fd))) return false;
  return true;
}

TEST(FdDeathTest, NumbersAreAboveThoseOfTheStandardStreams) {
  for_each_subset([](int closed) {
    const Fd made = make_fd([] { return ::memfd_create("test", MFD_CLOEXEC); });
    const Fd adopted(::open("/dev/null", O_RDWR | O_CLOEXEC));
    int ends[2] = {-1, -1};
    if (::pipe(ends) != 0) return false;
    const Fd reader(ends[0]), writer(ends[1]);
    for (const Fd* fd : {&made, &adopted, &reader, &writer})
      if (fd->get() <= 2 || !is_open(fd->get())) return false;
    return as_before(closed) && read_start("/proc/self/comm") != "";
  });
}

TEST(FdDeathTest, SocketsAndWhatComesThroughThem) {
  for_each_subset([](int closed) {
    const Result<Fd> listener = listen_unix("fsccl-fd-test-" + std::to_string(::getpid()));
    if (!listener.ok()) return false;
    const Result<Fd> here =
        connect_to(local_address(listener.value().get()), Deadline::in_ms(5000));
    const Result<Fd> there = accept_connection(listener.value().get());
    if (!here.ok() || !there.ok() || listener.value().get() <= 2 || here.value().get() <= 2 ||
        there.value().get() <= 2)
      return false;
    Fd passed;
    char byte = 'x';
    if (!send_with_fd(here.value().get(), &byte, 1, listener.value().get()).ok()) return false;
    if (!receive_with_fd(there.value().get(), &byte, 1, &passed).ok()) return false;
    return passed.get() > 2 && as_before(closed);
  });
}

// A line for a standard error that is closed must not get into a file that another thread has just
// made.
TEST(FdDeathTest, APlaceholderTakesNothingAndLeavesTheProgramsFiles) {
  EXPECT_EXIT(
      {
        ::close(1);
        ::close(2);
        int program = -1;
        {
          const StandardNumbersTaken taken;
          if (!is_open(1) || !is_open(2) || ::write(2, "x", 1) != -1 || errno != EBADF)
            std::_Exit(1);
          if ((program = ::open("/dev/null", O_RDWR)) <= 2 || ::dup2(program, 2) != 2)
            std::_Exit(2);
        }
        std::_Exit(!is_open(1) && ::write(2, "x", 1) == 1 ? 0 : 3);
      },
      testing::ExitedWithCode(0), "");
}

TEST(FdDeathTest, ForGood) {
  EXPECT_EXIT(
      {
        ::close(0);
        take_standard_numbers_for_good();
        char byte = 0;
        std::_Exit(is_open(0) && ::read(0, &byte, 1) == -1 && errno == EBADF &&
                           (::fcntl(0, F_GETFD) & FD_CLOEXEC)
                       ? 0
                       : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(FdDeathTest, ErrorsStay) {
  EXPECT_EXIT(
      {
        ::close(2);
        const Fd none = make_fd([] { return ::open("/nonexistent/file", O_RDONLY); });
        std::_Exit(!none.valid() && errno == ENOENT && above_standard(-1) == -1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace fsccl
