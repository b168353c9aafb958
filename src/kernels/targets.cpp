#include "kernels/targets.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace fsccl {
namespace {

#if defined(__x86_64__)
// Each function asks for all extensions that Highway lets the compiler use for its instruction set
// (HWY_TARGET_STR in hwy/highway.h). The builtin also checks that the operating system saves the
// registers.
bool has_sse4() {
  return __builtin_cpu_supports("ssse3") && __builtin_cpu_supports("sse4.1") &&
         __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt") &&
         __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("aes");
}

// Compilers before clang 19 do not know the names of these two.
bool has_f16c_and_lzcnt() {
  unsigned a, b, c, d;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & bit_F16C) == 0) return false;
  return __get_cpuid(0x8000'0001, &a, &b, &c, &d) != 0 && (c & bit_LZCNT) != 0;
}

bool has_avx2() {
  return has_sse4() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") && has_f16c_and_lzcnt();
}

bool has_avx3() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512bw");
}

int64_t processor_targets() {
  return (has_sse4() ? HWY_SSE4 : 0) | (has_avx2() ? HWY_AVX2 : 0) | (has_avx3() ? HWY_AVX3 : 0);
}
#else
int64_t processor_targets() { return 0; }
#endif

constinit std::atomic<int64_t> limit{HWY_TARGETS};

}  // namespace

int64_t supported_targets() {
  static const int64_t all = (processor_targets() & HWY_TARGETS) | HWY_STATIC_TARGET;
  // Relaxed order suffices, because the limit publishes no other memory.
  return all & limit.load(std::memory_order_relaxed);
}

void limit_targets_for_test(int64_t targets) {
  limit.store(targets == 0 ? HWY_TARGETS : targets, std::memory_order_relaxed);
}

}  // namespace fsccl
