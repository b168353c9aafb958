// The instruction sets that this build compiled kernels for and this processor has, and the choice
// of a function by them. The values are Highway's (hwy/detect_targets.h): one bit for each
// instruction set, and a lower bit is a better one.
//
// Highway's own library could make this choice. It is not linked, because libhwy 1.0.3 measures the
// processor's timer when a program loads it, which takes 3 to 7 ms of the program's start. FSCCL
// uses Highway's headers alone.
#pragma once
#include <cstdint>

#include "hwy/highway.h"

namespace fsccl {

// The instruction sets that kernels may use. HWY_STATIC_TARGET, which the whole build requires, is
// always among them.
int64_t supported_targets();

// For tests of kernels: limits what supported_targets() returns, until the next call. 0 means no
// limit.
void limit_targets_for_test(int64_t targets);

}  // namespace fsccl

// Defines the function `name`_for(targets), which returns the address of `name` as it was compiled
// for the best of these instruction sets. It stands in a file that foreach_target.h includes once
// for each instruction set, under `#if HWY_ONCE`.
#define FSCCL_COMPILED_FOR_TARGETS(name)                                   \
  static auto name##_for(int64_t targets) {                                \
    static constexpr decltype(&HWY_STATIC_DISPATCH(name)) kFunctions[] = { \
        nullptr, HWY_CHOOSE_TARGET_LIST(name), HWY_CHOOSE_FALLBACK(name)}; \
    hwy::ChosenTarget chosen;                                              \
    chosen.Update(targets);                                                \
    return kFunctions[chosen.GetIndex()];                                  \
  }
