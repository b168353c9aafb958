// The passes over memory: copy, cast, n-source reduce. Each is one sweep: every source byte is read
// once, every destination byte written once. How a process carries them out is chosen when a job
// starts (start.h); the bits of a result never depend on it, nor on how a range is cut into calls
// at multiples of kNormBlock.
//
// Stores: `streaming` is for what lies past the caches, and bypasses them unless other stores
// measured faster here. It is right when what is written will not be read soon
// by this core, and wrong for small data; the caller decides (it knows the operation's working
// set). Ignored below 1 KiB (unfenced: 256 bytes), and by a reduce that reads what it overwrites
// (accumulate, in place). Streaming kernels end with a store fence, so a flag written afterwards
// publishes the data. Any alignment and any count, 0 included, is right; 64-byte aligned
// destinations are fastest.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"

namespace fsccl {

// unfenced: bypasses the caches, whatever measured fastest, so that no line of another core is
// touched: for slots. After a copy the caller fences.
enum class Stores : uint8_t { cached, streaming, unfenced };

// In copies and casts the two ranges must not overlap.
void copy_bytes(void* dst, const void* src, size_t bytes, Stores stores);
// Orders the unfenced copies of this thread before its later stores, so a flag may then publish
// their data.
void fence_stores();
// Returns whether memcpy, or the system, could take twenty times as long because of where the two
// ranges lie. copy_bytes() does not.
bool slow_to_move(const void* dst, const void* src, size_t bytes);
// Copies with cached stores. It is faster than copy_bytes() where another core has just written the
// source, or has read the destination, and the rest is in this core's own cache. `cores`: near if
// lines come from the other core's caches as soon as from this core's last cache.
enum class Cores : uint8_t { near, far };
void copy_between_cores(void* dst, const void* src, size_t bytes, Cores cores);

// dst[i] = src[i] converted, round to nearest even; NaN stays NaN, overflow to infinity in fp16.
// Any pair of fp16, bf16, fp32, fp64, and equal dtypes (a copy). Returns false for an unsupported
// pair, touching nothing.
bool cast(void* dst, fsccl_dtype_t to, const void* src, fsccl_dtype_t from, size_t count,
          Stores stores);
bool cast_supported(fsccl_dtype_t to, fsccl_dtype_t from);

// The sum of squares of what a reduce stored, and whether all of it is finite. Elements are taken
// in blocks of kNormBlock; within a block, 16 fp64 partial sums by (index mod 16), added pairwise
// (8+8, 4+4, 2+2, 1+1); blocks are added in order. A range that does not begin at a multiple of the
// block begins a block of its own, so callers cut at multiples.
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
  // PREMUL_SUM: each source times this (in the accumulator's precision) before the sum
  double premul = 1;
  // floats: the reduced value times this (in the accumulator's precision)
  double scale = 1;
  // floats: then divided by this (likewise); integers: only AVG is divided
  int64_t divisor = 1;
  // dst += instead of dst = (added in the accumulator's precision)
  bool accumulate = false;
  Norm* norm = nullptr;  // floats: adds to it what was stored (after rounding to `to`)
  Stores stores = Stores::cached;
};
// Accumulators: fp32 for fp16, bf16 and fp32, fp64 for fp64 (or when `to` is fp64), integers their
// own width with wrapping; bool: SUM and MAX are or, PROD, MIN and AVG are and. One rounding, at
// the store. No fused multiply-add: the same bits on every machine. MIN and MAX propagate NaN;
// every NaN that a reduce stores is the same one (positive, quiet, no payload). Returns false for
// an unsupported combination (fp8, no sources, a divisor below 1), touching nothing.
bool reduce(const Reduce& args);
// How the accumulated value is finished: times `factor`, then, unless `divisor` is 1, divided by
// `divisor`. A rounded inverse as the factor would make 3.0000002 of 21 over 7; that of a power of
// two is exact, and multiplying takes less time than dividing.
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

// The chosen instruction set, for reports ("avx3", "avx2", "portable" ...).
const char* kernels_target();

}  // namespace fsccl
