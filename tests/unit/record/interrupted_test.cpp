// Tests that files are reserved although signals come so often that the kernel never completes a
// large call. This program defines those calls itself: large ones are always interrupted, and of
// the others every second one.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <filesystem>

#include "base/reserve_file.h"
#include "bootstrap/beat_table.h"
#include "record/recorder.h"

namespace {
constexpr off64_t kAtOnce = 32 << 10;
int calls = 0;
bool interrupted(off64_t bytes) { return bytes > kAtOnce || ++calls % 2; }
}  // namespace

extern "C" {
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) {
  if (interrupted(bytes)) return errno = EINTR, -1;
  return static_cast<int>(syscall(SYS_fallocate, fd, mode, offset, bytes));
}
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) {
  if (interrupted(bytes)) return EINTR;
  return syscall(SYS_fallocate, fd, 0, offset, bytes) == 0 ? 0 : errno;
}
}

namespace fsccl {
namespace {

uint64_t blocks_of(int fd) {
  struct stat facts{};
  return fstat(fd, &facts) == 0 ? static_cast<uint64_t>(facts.st_blocks) * 512 : 0;
}

TEST(Interrupted, AFileIsReservedWholeAndFromWhereItWasAsked) {
  const Fd fd(memfd_create("test", MFD_CLOEXEC));
  const uint64_t begin = 3 << 20, end = begin + (9 << 20) + 4096;
  uint64_t from = begin;
  EXPECT_EQ(reserve_file(fd.get(), &from, end), 0);
  EXPECT_EQ(from, end);
  EXPECT_EQ(blocks_of(fd.get()), end - begin);
  EXPECT_EQ(reserve_file(fd.get(), &from, begin), 0);  // there is nothing to reserve
  const Fd pipe_like(open("/dev/null", O_RDWR | O_CLOEXEC));
  from = 0;
  EXPECT_NE(reserve_file(pipe_like.get(), &from, end), 0);
  EXPECT_EQ(from, 0u);
}

TEST(Interrupted, TheTableOfHeartbeatsIsMade) {
  const Result<Fd> made = BeatTable::create(1, 16384);
  ASSERT_TRUE(made.ok()) << made.status().text();
  EXPECT_GT(blocks_of(made.value().get()), uint64_t{2} * kAtOnce);
}

TEST(Interrupted, TheRecorderIsMade) {
  std::string folder = ::testing::TempDir() + "interruptedXXXXXX";
  ASSERT_TRUE(mkdtemp(folder.data()));
  const auto made = Recorder::create({.folder = folder, .records = 4096, .job = 1});
  EXPECT_TRUE(made.ok()) << made.status().text();
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fsccl
