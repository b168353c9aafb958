// The public header's definition of a reduction: contributions are reduced in rank order in the
// accumulator of the dtype, and rounded once at the end. Plain loops over values, which share
// nothing with the library.
#pragma once
#include <fsccl/fsccl.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

namespace fsccl::testing {

inline bool is_float(fsccl_dtype_t dtype) {
  return dtype >= FSCCL_FLOAT16 && dtype <= FSCCL_FLOAT64;
}
inline bool is_fp8(fsccl_dtype_t dtype) {
  return dtype == FSCCL_FLOAT8_E4M3 || dtype == FSCCL_FLOAT8_E5M2;
}

const char* name_of(fsccl_dtype_t dtype);
const char* name_of(fsccl_op_kind_t kind);

// Returns the value of a floating dtype at `place`, element `index`.
double load_float(fsccl_dtype_t dtype, const void* place, size_t index);
void store_float(fsccl_dtype_t dtype, void* place, size_t index, double value);
// Returns the value after storing and loading it.
double round_to(fsccl_dtype_t dtype, double value);

// Sets each dst[i] to the reduction of element i of all sources.
void reference_reduce(fsccl_dtype_t dtype, fsccl_op_t op, const std::vector<const void*>& sources,
                      size_t count, void* dst);

// The last steps of a gradient, which is multiplied by the scale and then divided by the divisor.
struct Finish {
  double scale = 1, divisor = 1;
};
// Returns the expected gradient of one element. It sums the contributions of each group, then the
// groups' sums, in fp32, or in fp64 if one of the dtypes is fp64. Then it finishes the sum, and
// adds `*before` if there is one. The result is not yet rounded to `to`.
double reference_gradient(fsccl_dtype_t from, fsccl_dtype_t to,
                          const std::vector<std::vector<double>>& groups, const Finish& finish,
                          const double* before);

// Returns whether two elements are equal as the header promises: the same bits, NaN equal to NaN.
bool agree(fsccl_dtype_t dtype, const void* a, const void* b, size_t index);

// Fills `count` elements with values that depend on all arguments. If `tame`, products of several
// stay finite.
void fill_values(fsccl_dtype_t dtype, void* place, size_t count, uint64_t seed, bool tame);

}  // namespace fsccl::testing
