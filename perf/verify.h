// Writes data whose every element is a hash of its writer, its generation and its place, so that no
// old, missing or misplaced element passes for the right one; and counts the elements that are
// wrong. Summands in floating point have random mantissas. An element has the same sign and
// exponent on all ranks, so that no contribution can vanish in a rounding, and exponents differ
// between neighbours. These are pure functions over memory.
#pragma once
#include <fsccl/fsccl.h>

#include <cstddef>
#include <cstdint>

namespace fsccl::perf {

// The seeds of the data of one writer. `common` decides what is the same on all ranks, `own` the
// rest.
struct Seeds {
  uint32_t common = 0;
  uint32_t own = 0;
};
Seeds seeds_of(uint32_t stream, uint32_t generation, uint32_t writer);

// Writes the elements first .. first + count - 1 of the vector that `seeds` describes. For products
// the values stay close to one.
void fill(void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first, Seeds seeds,
          int32_t op_kind = FSCCL_OP_SUM);

// Returns how many elements differ from those that fill() writes.
uint64_t count_wrong_copy(const void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first,
                          Seeds seeds);

// Returns how many elements differ from those of the fp32 vector of `seeds`, cast to `wire` (fp32,
// fp16 or bf16; rounded to nearest, ties to even).
uint64_t count_wrong_cast(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                          Seeds seeds);

// Returns how many elements differ from the reduction over the writers 0 .. ranks-1 of (stream,
// generation), whose data had the type `input`; `output` is the same type or fp32. Integers,
// minimum and maximum must be equal. Other results must lie within one rounding of `output` and the
// roundings of a sum in fp32 (or fp64), on however many hosts the ranks are.
uint64_t count_wrong_reduced(const void* data, fsccl_dtype_t output, fsccl_dtype_t input,
                             uint64_t count, uint64_t first, uint32_t stream, uint32_t generation,
                             uint32_t ranks, fsccl_op_t op);

// Converts fp32 to 16 bits, rounded to nearest, ties to even, for values in the normal range of the
// result.
uint16_t bfloat16_bits(float value);
uint16_t half_bits(float value);

}  // namespace fsccl::perf
