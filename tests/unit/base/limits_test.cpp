// Tests the limits of this process, and those of machines and containers that files describe.
#include "base/limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "temporary_directory.h"

namespace fsccl {
namespace {

using testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

// Writes the files of a machine with 64 GiB of memory, of which 32 GiB are free.
void write_machine(const TemporaryDirectory& root, const std::string& cgroup) {
  root.write("proc/meminfo",
             "MemTotal:       67108864 kB\nMemFree:        1024 kB\nMemAvailable:   33554432 kB\n");
  root.write("proc/self/cgroup", cgroup);
}

TEST(Limits, OfThisProcess) {
  const Limits limits = read_limits();
  rlimit files;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &files), 0);
  EXPECT_EQ(limits.open_files.value, files.rlim_cur == RLIM_INFINITY ? kUnlimited : files.rlim_cur);
  EXPECT_THAT(limit_text(limits.open_files), HasSubstr("ulimit -n"));
  EXPECT_GE(limits.cores.value, 1u);
  EXPECT_GT(limits.memory_bytes.value, uint64_t{1} << 20);
  EXPECT_LE(limits.memory_available_bytes.value, limits.memory_bytes.value);
}

TEST(Limits, MachineWithoutContainer) {
  const TemporaryDirectory root;
  write_machine(root, "0::/\n");
  const Limits limits = read_limits(root.path());
  EXPECT_EQ(limits.memory_bytes.value, 64 * kGiB);
  EXPECT_EQ(limits.memory_available_bytes.value, 32 * kGiB);
  EXPECT_THAT(limits.memory_bytes.name, HasSubstr("machine"));
}

TEST(Limits, TheTightestGroupCounts) {
  const TemporaryDirectory root;
  write_machine(root, "1:name=systemd:/x\n0::/job/step\n");
  root.write("sys/fs/cgroup/job/memory.max", std::to_string(8 * kGiB) + "\n");
  root.write("sys/fs/cgroup/job/memory.current", std::to_string(5 * kGiB) + "\n");
  root.write("sys/fs/cgroup/job/memory.stat", "active_file " + std::to_string(kGiB) +
                                                  "\nanon 1\ninactive_file " +
                                                  std::to_string(kGiB) + "\n");
  root.write("sys/fs/cgroup/job/step/memory.max", "max\n");
  root.write("sys/fs/cgroup/job/step/cpu.max", "max 100000\n");
  root.write("sys/fs/cgroup/job/cpu.max", "50000 100000\n");
  const Limits limits = read_limits(root.path());
  EXPECT_EQ(limits.memory_bytes.value, 8 * kGiB);
  EXPECT_EQ(limits.memory_available_bytes.value, 5 * kGiB);
  EXPECT_THAT(limits.memory_bytes.name, HasSubstr("/job/memory.max"));
  EXPECT_EQ(limits.cores.value, 1u) << "half a core is one";
  EXPECT_EQ(limits.core_quota.value, 1u);
}

// A process that is bound to fewer cores than its container may use has the quota nevertheless.
TEST(Limits, TheQuotaIsToldBesideTheAffinity) {
  const TemporaryDirectory root;
  write_machine(root, "0::/job\n");
  root.write("sys/fs/cgroup/job/cpu.max", "100000000000 100000\n");
  const Limits limits = read_limits(root.path());
  EXPECT_EQ(limits.core_quota.value, 1'000'000u);
  EXPECT_LT(limits.cores.value, 1'000'000u);
}

TEST(Limits, NothingToReadDoesNotLimit) {
  const TemporaryDirectory root;
  const Limits limits = read_limits(root.path());
  EXPECT_EQ(limits.memory_bytes.value, kUnlimited);
  EXPECT_THAT(limit_text(limits.memory_bytes), HasSubstr("not set"));
  write_machine(root, "0::/a\n");
  root.write("proc/meminfo", "MemTotal: many kB\nMemAvailable: 99999999999999999999999 kB\n");
  root.write("sys/fs/cgroup/a/memory.max", "lots\n");
  root.write("sys/fs/cgroup/a/cpu.max", "5\n");
  EXPECT_EQ(read_limits(root.path()).memory_bytes.value, kUnlimited);
  EXPECT_EQ(read_limits(root.path()).memory_available_bytes.value, kUnlimited);
}

TEST(Limits, OverspentGroupHasNothingLeft) {
  const TemporaryDirectory root;
  write_machine(root, "0::/a\n");
  root.write("sys/fs/cgroup/a/memory.max", "1000\n");
  root.write("sys/fs/cgroup/a/memory.current", "2000\n");
  EXPECT_EQ(read_limits(root.path()).memory_available_bytes.value, 0u);
}

}  // namespace
}  // namespace fsccl
