// Tests how the driver is found. Each test starts this program again with the driver in question,
// and reads what the program reports.
#include "cuda/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace fsccl::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

int say() {
  std::string why;
  const Driver* const found = driver(&why);
  if (!found) {
    std::printf("none: %s", why.c_str());
    return 0;
  }
  std::printf("%d%s%s", found->version, found->cuMemcpyBatchAsync ? " batch" : "",
              found->cuMemcpyBatchAsync_v2 ? " batch_v2" : "");
  if (driver(&why) != found || !why.empty()) std::printf(" and then another");
  return 0;
}

// Returns the output of this program when libcuda.so.1 is looked for in `folder` first. `more` has
// further variables.
std::string with(const std::string& folder, const std::string& more = "") {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string command =
      "env LD_LIBRARY_PATH='" + folder + "' " + more + " '" + self + "' --say";
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return "no pipe";
  std::array<char, 4096> text;
  const size_t bytes = std::fread(text.data(), 1, text.size(), pipe);
  return pclose(pipe) == 0 ? std::string(text.data(), bytes) : "failed";
}

TEST(Driver, IsLoadedWithWhatItHas) {
  EXPECT_EQ(with(STAND_IN), "13000 batch batch_v2");
  EXPECT_EQ(with(CUDA_12_8, "FSCCL_STAND_IN_VERSION=12080"), "12080 batch");
  EXPECT_EQ(with(CUDA_12_0, "FSCCL_STAND_IN_VERSION=12000"), "12000");
}

TEST(Driver, ThatIsTooOldIsNone) {
  EXPECT_EQ(with(STAND_IN, "FSCCL_STAND_IN_VERSION=11080"),
            "none: the driver is for CUDA 11.8: install one for 12.0 or later");
}

TEST(Driver, ThatLacksAFunctionIsNone) {
  EXPECT_EQ(with(INCOMPLETE),
            "none: libcuda.so.1 has no cuMemCreate: install a driver for CUDA 12.0 or later");
}

TEST(Driver, ThatDoesNotStartIsNone) {
  EXPECT_EQ(with(STAND_IN, "FSCCL_STAND_IN_GPUS=0"),
            "none: cuInit: CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)");
  EXPECT_THAT(with(STAND_IN, "FSCCL_STAND_IN_FAIL=cuInit:1:999"),
              StartsWith("none: cuInit: an unknown error"));
  EXPECT_THAT(with(STAND_IN, "FSCCL_STAND_IN_FAIL=cuDriverGetVersion:1:3"),
              HasSubstr("CUDA_ERROR_NOT_INITIALIZED"));
}

// The first libcuda.so.1 that is found is a file that is no library, so the test does not depend on
// the system.
TEST(Driver, ThatIsNotThereSaysSo) {
  std::string folder = (std::filesystem::temp_directory_path() / "fsccl-test-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  std::ofstream(folder + "/libcuda.so.1") << "nothing";
  EXPECT_THAT(with(folder), StartsWith("none: NVIDIA's driver is not installed: " + folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace fsccl::cuda

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--say") return fsccl::cuda::say();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
