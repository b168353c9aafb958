// One instruction set's kernels as a table of functions. Each source file of this folder compiles
// once per instruction set and installs its part; dispatch.cpp builds the table of the best set on
// first use and then only follows pointers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernels.h"

namespace fsccl {

inline constexpr int kFloatTypes = 4;  // fp16, bf16, fp32, fp64, in the order of fsccl_dtype_t
constexpr int float_index(fsccl_dtype_t dtype) {
  return static_cast<int>(dtype) - static_cast<int>(FSCCL_FLOAT16);
}
static_assert(FSCCL_FLOAT16 == 8 && FSCCL_BFLOAT16 == 9 && FSCCL_FLOAT32 == 10 &&
              FSCCL_FLOAT64 == 11);

struct KernelTable {
  using Copy = void (*)(void* dst, const void* src, size_t bytes);
  using Cast = void (*)(void* dst, const void* src, size_t count, Stores stores);
  using Sum = void (*)(const Reduce& args);
  using General = void (*)(const Reduce& args, const KernelTable& table);

  const char* target;
  Copy copy_lines, copy_streaming, copy_near, copy_far;
  Cast cast[kFloatTypes][kFloatTypes];  // [to][from]; null where to == from
  Sum sum[kFloatTypes][kFloatTypes];    // [to][from]; null where the general kernel serves
  General general[FSCCL_DTYPE_COUNT];   // by accumulator; null where there is none
};

void install_copy(KernelTable& table);
void install_cast(KernelTable& table);
void install_sum(KernelTable& table);
void install_general(KernelTable& table);

// For tests: serve every later call with the named instruction set ("portable", "sse4", "avx2",
// "avx3", "neon"); null goes back to the best. False, changing nothing, when this build or this
// processor lacks it. Not safe while kernels run.
bool kernels_use_target_for_test(const char* target);

}  // namespace fsccl
