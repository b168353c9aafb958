#include "allocators/host/available_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace fsccl {
namespace {

// The tests write files into a folder that stands for "/".
class AvailableMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "fsccl-memory-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void write_machine() {
    write("/proc/meminfo", "MemTotal:       2000 kB\nMemFree:  3 kB\nMemAvailable:   1000 kB\n");
  }
  std::string root_;
};

TEST_F(AvailableMemoryTest, NothingReadableLimitsNothing) {
  const AvailableMemory memory = available_memory(root_);
  EXPECT_EQ(memory.bytes, UINT64_MAX);
  EXPECT_EQ(memory.source, "");
}

TEST_F(AvailableMemoryTest, TheMachineLimits) {
  write_machine();
  write("/proc/self/cgroup", "0::/\n");
  const AvailableMemory memory = available_memory(root_);
  EXPECT_EQ(memory.bytes, 1000U * 1024);
  EXPECT_EQ(memory.total, 2000U * 1024);
  EXPECT_NE(memory.source.find("machine"), std::string::npos);
}

TEST_F(AvailableMemoryTest, AParentGroupLimits) {
  write_machine();
  write("/proc/self/cgroup", "0::/job/rank\n");
  write("/sys/fs/cgroup/job/rank/memory.max", "max\n");
  write("/sys/fs/cgroup/job/rank/memory.current", "10\n");
  write("/sys/fs/cgroup/job/memory.max", "500000\n");
  write("/sys/fs/cgroup/job/memory.current", "300000\n");
  write("/sys/fs/cgroup/job/memory.stat",
        "anon 5\ninactive_anon 9\nactive_anon 7\ninactive_file 20000\nactive_file 30000\n");
  const AvailableMemory memory = available_memory(root_);
  EXPECT_EQ(memory.bytes, 500'000U - 250'000U);
  EXPECT_EQ(memory.total, 500'000U);
  EXPECT_NE(memory.source.find("/job"), std::string::npos);
}

TEST_F(AvailableMemoryTest, TheFirstVersionOfGroupsLimitsToo) {
  write_machine();
  write("/proc/self/cgroup", "9:name=systemd:/\n4:memory:/not/visible\n0::/\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "400000\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "500000\n");
  EXPECT_EQ(available_memory(root_).bytes, 0U);
  write("/sys/fs/cgroup/memory/memory.stat",
        "inactive_file 7\nactive_file 9\ntotal_inactive_file 100000\ntotal_active_file 150000\n");
  EXPECT_EQ(available_memory(root_).bytes, 150'000U);
}

TEST_F(AvailableMemoryTest, DamagedFilesAreIgnored) {
  write("/proc/meminfo", "MemAvailable: lots\n");
  write("/proc/self/cgroup", "\n:\n::\n0:\n0::\nx:memory:relative\n0::///\n");
  write("/sys/fs/cgroup/memory.max", "99999999999999999999999\n");
  write("/sys/fs/cgroup/memory.current", "");
  EXPECT_EQ(available_memory(root_).bytes, UINT64_MAX);
}

}  // namespace
}  // namespace fsccl
