// A KernelTable holds the kernels of one instruction set as function pointers. The files copy.cpp,
// cast.cpp, reduce_sum.cpp and reduce_general.cpp are compiled once for each instruction set, and
// each of them installs its part of the table. dispatch.cpp builds the tables on the first use;
// later calls only follow pointers. The argument `variant` says how a pass stores and fetches
// (variants.h).
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
  CopyAs copy_as;                       // copies by Body::lines
  Cast cast[kFloatTypes][kFloatTypes];  // [to][from]; null where to == from
  Sum sum[kFloatTypes][kFloatTypes];    // [to][from]; null where the general kernel serves
  General general[FSCCL_DTYPE_COUNT];   // by accumulator; null where there is none
};

// Each installs its part of the table of one instruction set. `target` is the bit of the
// instruction set in hwy/detect_targets.h.
void install_copy(KernelTable& table, int64_t target);
void install_cast(KernelTable& table, int64_t target);
void install_sum(KernelTable& table, int64_t target);
void install_general(KernelTable& table, int64_t target);

// Defines the function `name`, one of those above. It calls the `name`_here that the file compiled
// for the given instruction set.
#define FSCCL_INSTALL(name)               \
  FSCCL_COMPILED_FOR_TARGETS(name##_here) \
  void name(KernelTable& table, int64_t target) { name##_here_for(target)(table); }

// For tests: makes every later call use the named instruction set ("portable", "sse4", "avx2",
// "avx3", "neon") with the default variants. Null stands for the best instruction set. Returns
// false and changes nothing if this build or this processor lacks the instruction set.
bool kernels_use_target_for_test(const char* target);

}  // namespace fsccl
