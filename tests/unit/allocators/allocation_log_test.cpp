#include "allocators/placement/allocation_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <regex>
#include <sstream>

#include "../../devices.h"
#include "../base/temporary_directory.h"
#include "base/fd.h"

namespace fsccl {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(AllocationLog, HasTheLinesOfRmm) {
  const TemporaryDirectory directory;
  for (int turn = 0; turn < 2; turn++) {  // a second pool goes on with the file
    Result<std::unique_ptr<AllocationLog>> log = AllocationLog::open(directory.path("log.csv"));
    ASSERT_TRUE(log.ok());
    log.value()->allocate(1'234'567, 0x7f00, 4096, 0x10);
    log.value()->free(1'234'568, 0x7f00, 4096, 0);
    log.value()->failure(2'000'000, 1u << 20, 0);
  }
  const std::vector<std::string> lines = lines_of(directory.read("log.csv"));
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[0], "Thread,Time,Action,Pointer,Size,Stream");
  const char* wanted[] = {"allocate,0x7f00,4096,0x10", "free,0x7f00,4096,0x0",
                          "allocate failure,0x0,1048576,0x0"};
  const char* fractions[] = {"234567", "234568", "000000"};
  for (size_t i = 0; i < 6; i++) {
    const std::regex line(std::string(R"(\d+,\d\d:\d\d:\d\d\.)") + fractions[i % 3] + "," +
                          wanted[i % 3]);
    EXPECT_TRUE(std::regex_match(lines[i + 1], line)) << lines[i + 1];
  }
  struct stat status{};
  ASSERT_EQ(::stat(directory.path("log.csv").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST(AllocationLog, WritesWholeLinesWhenMuchIsCollected) {
  const TemporaryDirectory directory;
  Result<std::unique_ptr<AllocationLog>> log = AllocationLog::open(directory.path("log.csv"));
  ASSERT_TRUE(log.ok());
  log.value()->allocate(1, 1, 1, 0);
  EXPECT_EQ(lines_of(directory.read("log.csv")).size(), 1u);  // the head: the line is collected
  for (int i = 0; i < 5000; i++) log.value()->allocate(1, 1, 1, 0);
  const std::string text = directory.read("log.csv");
  EXPECT_GT(text.size(), 64u << 10);
  EXPECT_EQ(text.back(), '\n');
  log.value()->flush();
  EXPECT_EQ(lines_of(directory.read("log.csv")).size(), 5002u);
}

TEST(AllocationLog, RefusesWhatIsNoFileOfItsOwn) {
  const TemporaryDirectory directory;
  directory.write("real", "");
  std::filesystem::create_symlink(directory.path("real"), directory.path("link"));
  ASSERT_EQ(::mkfifo(directory.path("fifo").c_str(), 0600), 0);
  for (const char* name : {"link", "missing/log", "", "fifo"}) {  // a FIFO that nobody reads
    const Result<std::unique_ptr<AllocationLog>> log = AllocationLog::open(directory.path(name));
    ASSERT_FALSE(log.ok()) << name;
    EXPECT_EQ(log.status().code(), FSCCL_ERR_CONFIG);
    EXPECT_THAT(log.status().text(), testing::HasSubstr(directory.path(name)));
  }
}

// Another program may hold the lock of the file for ever. A file with lines is used nonetheless,
// and an empty one, which would have no head, is refused.
TEST(AllocationLog, WaitsForALockNoLongerThanASecond) {
  const TemporaryDirectory directory;
  for (const std::string before : {"", "Thread,Time,Action,Pointer,Size,Stream\n"}) {
    directory.write("log.csv", before);
    const Fd other =
        make_fd([&] { return ::open(directory.path("log.csv").c_str(), O_RDONLY | O_CLOEXEC); });
    ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
    Result<std::unique_ptr<AllocationLog>> log = AllocationLog::open(directory.path("log.csv"));
    EXPECT_EQ(log.ok(), !before.empty());
    if (!log.ok()) {
      EXPECT_EQ(log.status().code(), FSCCL_ERR_CONFIG);
      EXPECT_THAT(log.status().text(), testing::HasSubstr("has locked it (flock)"));
      continue;
    }
    log.value()->allocate(1, 1, 1, 0);
    log.value()->flush();
    EXPECT_EQ(lines_of(directory.read("log.csv")).size(), 2u);
  }
}

// The head and a line of the log are written in place to a device, to a FIFO that has a reader, and
// to a descriptor that is named by its path.
TEST(AllocationLog, WritesToWhatIsNoFileInPlace) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo(directory.path("fifo").c_str(), 0600), 0);
  const std::string null = device_like("null", 3, directory.path());
  if (null.empty())
    GTEST_SKIP() << "no device of the test's own: mknod, or a temporary folder without nodev";
  std::filesystem::create_symlink(null, directory.path("link"));
  const Fd reader = make_fd(
      [&] { return ::open(directory.path("fifo").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC); });
  directory.write("output", "before\n");
  const Fd output =
      make_fd([&] { return ::open(directory.path("output").c_str(), O_WRONLY | O_CLOEXEC); });
  for (const std::string& path : {null, directory.path("link"), directory.path("fifo"),
                                  "/dev/fd/" + std::to_string(output.get())}) {
    Result<std::unique_ptr<AllocationLog>> log = AllocationLog::open(path);
    ASSERT_TRUE(log.ok()) << log.status().text();
    log.value()->allocate(1, 1, 1, 0);
  }
  char text[100] = {};
  EXPECT_GT(::read(reader.get(), text, sizeof text - 1), 0);
  EXPECT_THAT(text, testing::StartsWith("Thread,Time,Action,Pointer,Size,Stream\n"));
  const std::vector<std::string> lines = lines_of(directory.read("output"));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "before");
  EXPECT_EQ(lines[1], "Thread,Time,Action,Pointer,Size,Stream");
  EXPECT_TRUE(std::filesystem::is_symlink(directory.path("link")));
}

}  // namespace
}  // namespace fsccl
