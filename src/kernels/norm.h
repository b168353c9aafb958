// The norm of a reduce, in the one order that makes its bits independent of vector width: 16
// partial sums a block (element index modulo 16), added pairwise, blocks added in order.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/kernels.h"

namespace fsccl {

inline constexpr size_t kNormPartials = 16;

// Overwrites `partial`. `finite` speaks for fp64 elements, whose squares may overflow; sums of
// squares of narrower ones are finite exactly when every element is.
inline void add_norm_block(double* partial, bool is_fp64, bool finite, Norm& norm) {
  for (size_t half = kNormPartials / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) partial[k] += partial[k + half];
  }
  norm.sum += partial[0];
  norm.finite = norm.finite && (is_fp64 ? finite : std::isfinite(partial[0]));
}

}  // namespace fsccl
