// One instruction set's kernels as a table of functions. Each source file of this folder compiles
// once per instruction set and installs its part; dispatch.cpp builds the tables on first use and
// then only follows pointers. An argument says what a pass does beside its arithmetic (variants.h).
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"
#include "kernels/targets.h"
#include "kernels/variants.h"

namespace fsccl {

inline constexpr int kFloatTypes = 4;  // fp16, bf16, fp32, fp64, in the order of fsccl_dtype_t
constexpr int float_index(fsccl_dtype_t dtype) {
  return static_cast<int>(dtype) - static_cast<int>(FSCCL_FLOAT16);
}
static_assert(FSCCL_FLOAT16 == 8 && FSCCL_BFLOAT16 == 9 && FSCCL_FLOAT32 == 10 &&
              FSCCL_FLOAT64 == 11);

struct KernelTable {
  using Copy = void (*)(void* dst, const void* src, size_t bytes);
  using CopyAs = void (*)(void* dst, const void* src, size_t bytes, Variant variant);
  using Cast = void (*)(void* dst, const void* src, size_t count, Variant variant);
  using Sum = void (*)(const Reduce& args, Variant variant);
  using General = void (*)(const Reduce& args, const KernelTable& table);

  const char* target;
  Copy copy_lines, copy_streaming, copy_near, copy_far;
  CopyAs copy_as;                       // copies lines
  Cast cast[kFloatTypes][kFloatTypes];  // [to][from]; null where to == from
  Sum sum[kFloatTypes][kFloatTypes];    // [to][from]; null where the general kernel serves
  General general[FSCCL_DTYPE_COUNT];   // by accumulator; null where there is none
};

// The parts of the table of one instruction set, a value of hwy/detect_targets.h.
void install_copy(KernelTable& table, int64_t target);
void install_cast(KernelTable& table, int64_t target);
void install_sum(KernelTable& table, int64_t target);
void install_general(KernelTable& table, int64_t target);

// Defines such a function from what the file compiled for each instruction set, `name`_here.
#define FSCCL_INSTALL(name)               \
  FSCCL_COMPILED_FOR_TARGETS(name##_here) \
  void name(KernelTable& table, int64_t target) { name##_here_for(target)(table); }

// For tests: serve every later call with the named instruction set ("portable", "sse4", "avx2",
// "avx3", "neon") and the default variants; null goes back to the best. False, changing nothing,
// when this build or this processor lacks it.
bool kernels_use_target_for_test(const char* target);

}  // namespace fsccl
