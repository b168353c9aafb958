#include "kernels/targets.h"

#include <gtest/gtest.h>

#include <fstream>
#include <initializer_list>
#include <set>
#include <sstream>
#include <string>

namespace fsccl {
namespace {

#if defined(__x86_64__)
// Returns the flags that the kernel reports for the first processor.
std::set<std::string> processor_flags() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line))
    if (line.starts_with("flags")) break;
  std::istringstream words(line);
  std::set<std::string> flags;
  for (std::string word; words >> word;) flags.insert(word);
  return flags;
}

TEST(Targets, AreThoseThatTheKernelTells) {
  const auto flags = processor_flags();
  ASSERT_TRUE(flags.contains("sse2")) << "no flags in /proc/cpuinfo";
  const auto have = [&](std::initializer_list<const char*> all) {
    for (const char* flag : all)
      if (!flags.contains(flag)) return false;
    return true;
  };
  const bool sse4 = have({"ssse3", "sse4_1", "sse4_2", "popcnt", "pclmulqdq", "aes"});
  const bool avx2 = sse4 && have({"avx2", "fma", "bmi1", "bmi2", "f16c", "abm"});
  const bool avx3 = avx2 && have({"avx512f", "avx512cd", "avx512vl", "avx512dq", "avx512bw"});
  EXPECT_EQ((supported_targets() & HWY_SSE4) != 0, sse4);
  EXPECT_EQ((supported_targets() & HWY_AVX2) != 0, avx2);
  EXPECT_EQ((supported_targets() & HWY_AVX3) != 0, avx3);
}
#endif

TEST(Targets, AreLimitedAndHaveTheBaselineAgain) {
  const int64_t all = supported_targets();
  ASSERT_NE(all & HWY_STATIC_TARGET, 0);
  limit_targets_for_test(HWY_STATIC_TARGET);
  EXPECT_EQ(supported_targets(), HWY_STATIC_TARGET);
  limit_targets_for_test(0);
  EXPECT_EQ(supported_targets(), all);
}

}  // namespace
}  // namespace fsccl
