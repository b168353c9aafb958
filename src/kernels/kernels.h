// The passes over memory: copy, cast, and the reduce of n sources. Each pass reads every source
// byte once and writes every destination byte once. The variants of the passes are chosen when a
// job starts (start.h). The bits of a result do not depend on that choice, nor on how a caller cuts
// a range into calls, as long as the cuts are at multiples of kNormBlock.
//
// Stores::streaming is for data that does not fit the caches: the stores bypass the caches, unless
// other stores were measured to be faster on this machine. It is right if this core will not read
// the result soon, and wrong for small data. The caller decides, because it knows the working set
// of the operation. Copies and casts of less than 1 KiB (with `unfenced`, of less than 256 bytes)
// use cached stores nonetheless, and so do a reduce that reads what it overwrites (accumulate, in
// place), and every reduce other than the sums of reduce_sum.cpp. Streaming kernels end with a
// store fence, so that a flag written afterwards publishes the data.
//
// Every alignment and every count, 0 included, is correct. Destinations aligned to 64 bytes are
// fastest.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace fsccl {

// `unfenced` is for slots: the stores bypass the caches whatever was measured to be fastest, so
// that they do not touch lines in the caches of other cores. After such a copy the caller must call
// fence_stores().
enum class Stores : uint8_t { cached, streaming, unfenced };

// From this size on, glibc's memcpy uses `rep movsb` on processors that say they execute it fast.
// That instruction waits for each line that comes from another core. Copies of fewer bytes with
// cached stores are a memcpy.
inline constexpr size_t kLeastMovedBytes = 2113;

// In copies and casts the two ranges must not overlap.
void copy_bytes(void* dst, const void* src, size_t bytes, Stores stores);
// Orders the unfenced copies of this thread before its later stores, so that a flag stored later
// publishes the copied data.
void fence_stores();
// Returns whether memcpy, or a copy by the operating system (as when it reads another process's
// memory), could take twenty times as long because of where the two ranges lie. copy_bytes() avoids
// this.
bool slow_to_move(const void* dst, const void* src, size_t bytes);
// Copies with cached stores. It is faster than copy_bytes() where another core has just written the
// source, or has read the destination, and the other range is in this core's own cache. `cores` is
// `near` if lines come from the caches of the other core as soon as from this core's last-level
// cache.
enum class Cores : uint8_t { near, far };
void copy_between_cores(void* dst, const void* src, size_t bytes, Cores cores);

// Converts src[i] to dst[i] with rounding to nearest even. NaN stays NaN, and what is too large for
// fp16 becomes infinity. The types are any two of fp16, bf16, fp32 and fp64, or equal types of any
// kind (a copy). Returns false for any other pair and then touches nothing.
bool cast(void* dst, fsccl_dtype_t to, const void* src, fsccl_dtype_t from, size_t count,
          Stores stores);
bool cast_supported(fsccl_dtype_t to, fsccl_dtype_t from);

// The sum of squares of what a reduce stored, and whether all of it is finite. The order of the
// additions is fixed: the elements are taken in blocks of kNormBlock, a block has 16 partial sums
// in fp64, one for each (index mod 16), which are added pairwise (8+8, 4+4, 2+2, 1+1), and the sums
// of the blocks are added in their order. The first block of a call begins at the call's first
// element, so callers that cut a range must cut it at multiples of kNormBlock.
inline constexpr size_t kNormBlock = 4096;
struct Norm {
  double sum = 0;
  bool finite = true;
};

struct Reduce {
  const void* const* sources;  // n pointers, reduced in this order
  int n;
  fsccl_dtype_t from;
  void* dst;         // may equal one of the sources, element for element
  fsccl_dtype_t to;  // equal to `from`, or both of fp16, bf16, fp32, fp64
  size_t count;      // elements
  // AVG is SUM; the caller gives the number of contributions as `divisor`
  fsccl_op_kind_t op = FSCCL_OP_SUM;
  // PREMUL_SUM: each source is multiplied by this (in the accumulator's precision) before the sum
  double premul = 1;
  // floats: the reduced value is multiplied by this (in the accumulator's precision)
  double scale = 1;
  // floats: the scaled value is divided by this (likewise); integers: only AVG divides by it
  int64_t divisor = 1;
  // dst += instead of dst = (added in the accumulator's precision)
  bool accumulate = false;
  Norm* norm = nullptr;  // floats only: the norm of the stored elements is added to it
  Stores stores = Stores::cached;
};
// The accumulator is fp32 for fp16, bf16 and fp32, fp64 if `from` or `to` is fp64, and for integers
// their own type, with wrapping. On bool, SUM and MAX are "or", and PROD, MIN and AVG are "and". A
// result is rounded from the accumulator once, at the store. Multiplications and additions are not
// fused, so that every machine gives the same bits. MIN and MAX propagate NaN. Every NaN that a
// reduce stores is the same one (positive, quiet, without payload). Returns false for an
// unsupported combination (fp8, no sources, a divisor below 1) and then touches nothing.
bool reduce(const Reduce& args);
// The accumulated value is multiplied by `factor` and then, unless `divisor` is 1, divided by
// `divisor`. A power of two is made part of the factor, because its inverse is exact and a
// multiplication takes less time than a division. Other divisors are divided by: with a rounded
// inverse as the factor, 21 over 7 would be 3.0000002.
template <class A>
struct Quotient {
  A factor, divisor = 1;

  constexpr Quotient(double scale, int64_t by) : factor(static_cast<A>(scale)) {
    const bool exact = (by & (by - 1)) == 0;
    if (!exact)
      divisor = static_cast<A>(by);
    else if (by != 1)
      factor = static_cast<A>(scale / static_cast<double>(by));
  }
  constexpr bool divides() const { return divisor != A{1}; }
};
// Returns the type in which floats are accumulated.
constexpr fsccl_dtype_t accumulator_of(fsccl_dtype_t from, fsccl_dtype_t to) {
  return from == FSCCL_FLOAT64 || to == FSCCL_FLOAT64 ? FSCCL_FLOAT64 : FSCCL_FLOAT32;
}
bool reduce_supported(fsccl_dtype_t from, fsccl_dtype_t to, fsccl_op_kind_t op);

// Returns the name of the instruction set in use, for reports ("avx3", "avx2", "portable" ...).
const char* kernels_target();

}  // namespace fsccl
