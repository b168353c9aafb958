// The norm of a reduce is added in one fixed order, which makes its bits independent of the vector
// width: a block has 16 partial sums (by element index modulo 16), these are added pairwise, and
// the blocks are added in order.
#pragma once
#include <cmath>
#include <cstddef>

#include "kernels/kernels.h"

namespace fsccl {

inline constexpr size_t kNormPartials = 16;

// Adds the sum of one block to `norm`, and overwrites `partial`. `finite` counts only if the
// elements are fp64, whose squares can overflow. The sum of squares of narrower elements is finite
// exactly when every element is, so it is tested instead.
inline void add_norm_block(double* partial, bool is_fp64, bool finite, Norm& norm) {
  for (size_t half = kNormPartials / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) partial[k] += partial[k + half];
  }
  norm.sum += partial[0];
  norm.finite = norm.finite && (is_fp64 ? finite : std::isfinite(partial[0]));
}

}  // namespace fsccl
