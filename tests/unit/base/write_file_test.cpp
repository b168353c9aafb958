// Tests writes beyond the limit of file sizes (ulimit -f). They end with an error that names the
// limit, and without a signal. The limit is set in children.
#include "base/write_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "base/fd.h"
#include "base/log.h"
#include "base/reserve_file.h"
#include "base/status.h"
#include "base/whole_file.h"
#include "temporary_directory.h"

namespace fsccl {
namespace {

void limit_to(uint64_t bytes) {
  const rlimit limit{bytes, RLIM_INFINITY};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(99);
}

TEST(FileLimitDeathTest, SharedMemory) {
  for (const uint64_t limit : {0, 512, 4096})
    EXPECT_EXIT(
        {
          limit_to(limit);
          const Fd fd = make_fd([] { return ::memfd_create("test", MFD_CLOEXEC); });
          uint64_t from = 0;
          const bool all = resize_file(fd.get(), 8192) == EFBIG &&
                           reserve_file(fd.get(), &from, 8192) == EFBIG &&
                           write_all(fd.get(), std::string(8192, 'x')) == EFBIG;
          std::_Exit(all ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << limit;
}

TEST(FileLimitDeathTest, TheErrorNamesIt) {
  EXPECT_EXIT(
      {
        limit_to(512);
        const Status status = fail_errno(EFBIG, "some file");
        std::fputs(status.text().c_str(), stderr);
        std::_Exit(status.code() == FSCCL_ERR_LIMIT ? 0 : 1);
      },
      testing::ExitedWithCode(0),
      "some file: File too large; raise the limit of file sizes .*ulimit -f.*: it is 512 bytes");
}

TEST(FileLimitDeathTest, FilesOfOutputAndTheLog) {
  const TemporaryDirectory directory;
  directory.write("a", "before");
  EXPECT_EXIT(
      {
        limit_to(0);
        Result<WholeFile> file = WholeFile::create(directory.path("a"));
        if (!file.ok()) std::_Exit(1);
        file.value().append("text");
        const std::string said = file.value().commit().text();
        if (!configure_log(LogLevel::kWarn, directory.path("log")).ok()) std::_Exit(2);
        FSCCL_LOG(kWarn, "a line that is lost");
        limit_to(RLIM_INFINITY);  // the test program redirects the standard error to a file
        std::fputs(said.c_str(), stderr);
        std::_Exit(0);
      },
      testing::ExitedWithCode(0),
      "a' cannot be written: File too large; raise the limit of file sizes .*it is 0 bytes");
  EXPECT_EQ(directory.read("a"), "before");
}

// The library does not touch signals of the program. A signal that was pending stays pending, and
// signals that the program ignores or handles are ignored or handled as before.
TEST(FileSignals, LeaveThoseOfTheProgram) {
  sigset_t one, before, pending;
  sigemptyset(&one);
  sigaddset(&one, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &one, &before);
  raise(SIGPIPE);
  {
    const FileSignalsHeld held;
  }
  sigpending(&pending);
  EXPECT_TRUE(sigismember(&pending, SIGPIPE));
  int taken = 0;
  EXPECT_EQ(sigwait(&one, &taken), 0);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EXIT(
      {
        raise(SIGPIPE);
        std::_Exit(0);
      },
      testing::KilledBySignal(SIGPIPE), "");
}

}  // namespace
}  // namespace fsccl
