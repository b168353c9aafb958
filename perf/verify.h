// Data whose every element is a hash of who wrote it, in which generation and where it stands, so
// that nothing old, missing or misplaced passes for it; and the count of elements that are not what
// they must be. Floating-point summands have random mantissas, one sign and one exponent over the
// ranks (so no rank's part can vanish in a rounding) and exponents that differ between neighbours.
// Pure functions over memory.
#pragma once
#include <fsccl/fsccl.h>

#include <cstddef>
#include <cstdint>

namespace fsccl::perf {

// The data of one writer: `common` decides what all ranks have in common, `own` the rest.
struct Seeds {
  uint32_t common = 0;
  uint32_t own = 0;
};
Seeds seeds_of(uint32_t stream, uint32_t generation, uint32_t writer);

// Writes elements first .. first + count of the vector `seeds`. For products the values stay close
// to one.
void fill(void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first, Seeds seeds,
          int32_t op_kind = FSCCL_OP_SUM);

// How many elements differ from what fill() wrote.
uint64_t count_wrong_copy(const void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first,
                          Seeds seeds);

// How many elements differ from the cast to `wire` (fp32, fp16 or bf16: round to nearest, ties to
// even) of the fp32 vector `seeds`.
uint64_t count_wrong_cast(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                          Seeds seeds);

// How many elements differ from the reduction over the writers 0 .. ranks-1 of (stream,
// generation), whose data were of type `input`; `output` is either the same type or fp32. Integers,
// minimum and maximum must be equal, other results lie within one rounding of `output` and the
// roundings of an fp32 (fp64) sum, on however many hosts the ranks are.
uint64_t count_wrong_reduced(const void* data, fsccl_dtype_t output, fsccl_dtype_t input,
                             uint64_t count, uint64_t first, uint32_t stream, uint32_t generation,
                             uint32_t ranks, fsccl_op_t op);

// fp32 to 16 bits, round to nearest, ties to even, for values in the normal range of the result.
uint16_t bfloat16_bits(float value);
uint16_t half_bits(float value);

}  // namespace fsccl::perf
