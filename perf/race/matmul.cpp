// A block of C stays in registers while a panel of A and one of B pass by, which lie packed in the
// order in which they are read. The panel of B stays in the first cache for all panels of A.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "race/matmul.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "race/matmul.h"
#include "kernels/targets.h"
// clang-format on

#include <algorithm>
#include <array>
#include <chrono>
#include <vector>

#ifndef FSCCL_MATMUL_SIDES
#define FSCCL_MATMUL_SIDES
// 480 tokens and a weight of 9 MiB, which lies in memory
constexpr size_t kM = 480, kN = 1536, kK = 1536;
constexpr size_t kDepth = 256;  // depth of a panel
struct Matrices {
  std::vector<float> a, b, c;
  std::vector<float> panels_a, panels_b;  // packed
};
#endif

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// AVX-512 has 32 registers, the older instruction sets have 16 of which 12 hold the block.
constexpr size_t kRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;

// Packs panels of `wide` columns (rows of A, columns of B) from `at` on, each with its depth behind
// each other. An element of column i and depth k is `from[i * of_column + k * of_depth]`.
HWY_INLINE void pack(const float* from, size_t columns, size_t wide, size_t of_column,
                     size_t of_depth, float* to) {
  for (size_t i = 0; i < columns; i += wide)
    for (size_t k = 0; k < kDepth; k++)
      for (size_t j = 0; j < wide; j++) *to++ = from[(i + j) * of_column + k * of_depth];
}

HWY_INLINE void add_block(const float* a, const float* b, float* c) {
  const hn::ScalableTag<float> d;
  const size_t lanes = hn::Lanes(d);
  using V = hn::Vec<decltype(d)>;
  V left[kRows], right[kRows];
  for (size_t r = 0; r < kRows; r++) {
    left[r] = hn::LoadU(d, c + r * kN);
    right[r] = hn::LoadU(d, c + r * kN + lanes);
  }
  for (size_t k = 0; k < kDepth; k++) {
    const V first = hn::LoadU(d, b), second = hn::LoadU(d, b + lanes);
    for (size_t r = 0; r < kRows; r++) {
      const V factor = hn::Set(d, a[r]);
      left[r] = hn::MulAdd(factor, first, left[r]);
      right[r] = hn::MulAdd(factor, second, right[r]);
    }
    a += kRows, b += 2 * lanes;
  }
  for (size_t r = 0; r < kRows; r++) {
    hn::StoreU(left[r], d, c + r * kN);
    hn::StoreU(right[r], d, c + r * kN + lanes);
  }
}

// Adds a b to c.
void multiply(Matrices& of) {
  const size_t wide = 2 * hn::Lanes(hn::ScalableTag<float>());
  for (size_t depth = 0; depth < kK; depth += kDepth) {
    pack(of.a.data() + depth, kM, kRows, kK, 1, of.panels_a.data());
    pack(of.b.data() + depth * kN, kN, wide, 1, kN, of.panels_b.data());
    for (size_t j = 0; j < kN; j += wide)
      for (size_t i = 0; i < kM; i += kRows)
        add_block(&of.panels_a[i * kDepth], &of.panels_b[j * kDepth], &of.c[i * kN + j]);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_COMPILED_FOR_TARGETS(multiply)
}  // namespace fsccl

namespace {

const char* name_of(int64_t targets) {
  switch (targets & -targets) {  // the best one
    case HWY_AVX3:
      return "AVX-512";
    case HWY_AVX2:
      return "AVX2";
    case HWY_SSE4:
      return "SSE4";
    case HWY_NEON:
      return "NEON";
    default:
      return "portable";
  }
}

}  // namespace

MatmulRate measured_matmul() {
  using Clock = std::chrono::steady_clock;
  constexpr size_t kTimes = 7;
  const int64_t targets = fsccl::supported_targets();
  Matrices of{std::vector<float>(kM * kK, 0.5F), std::vector<float>(kK * kN, 0.25F),
              std::vector<float>(kM * kN), std::vector<float>(kM * kDepth),
              std::vector<float>(kDepth * kN)};
  std::array<double, kTimes> seconds{};
  for (double& one : seconds) {
    const auto begin = Clock::now();
    fsccl::multiply_for(targets)(of);
    one = std::chrono::duration<double>(Clock::now() - begin).count();
  }
  const double best = *std::min_element(seconds.begin(), seconds.end());
  // The products are exact, so a kernel that computes anything else is found.
  const bool right = std::all_of(of.c.begin(), of.c.end(), [](float value) {
    return value == static_cast<float>(kTimes * kK) * 0.125F;
  });
  return {right ? 2.0 * kM * kN * kK / best / 1e12 : 0, name_of(targets)};
}
#endif
