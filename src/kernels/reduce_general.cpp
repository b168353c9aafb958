// The less frequent reduces: MIN, MAX, PROD, PREMUL_SUM, integers, bool, fp64 mixed with narrower
// types, fp16 mixed with bf16, and every reduce of the instruction set with one lane. A block of
// each source is widened into a buffer in the first-level cache and reduced there by plain loops,
// which the compiler vectorises for each instruction set; then the block is finished and stored.
// This serves every supported reduce, with two or three times the cache traffic of reduce_sum.cpp.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/reduce_general.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include <cstring>
#include <limits>
#include <type_traits>
#include "hwy/highway.h"
#include "kernels/kernel_table.h"
#include "kernels/norm.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

inline constexpr size_t kBlock = 512;  // elements; divides kNormBlock
static_assert(kNormBlock % kBlock == 0);

struct Bool {
  uint8_t value;  // any non-zero byte is true
};

// Arithmetic on T that wraps instead of overflowing.
template <class T>
HWY_INLINE T plus(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>((a.value | b.value) != 0)};
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;
    return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
  } else {
    return a + b;
  }
}
template <class T>
HWY_INLINE T times(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return {static_cast<uint8_t>((a.value != 0) & (b.value != 0))};
  } else if constexpr (std::is_integral_v<T>) {
    using U = std::conditional_t<sizeof(T) <= 4, uint32_t, uint64_t>;
    return static_cast<T>(static_cast<U>(a) * static_cast<U>(b));
  } else {
    return a * b;
  }
}
// These two return NaN if either value is NaN. They return the first of two equal values (+0 and
// -0).
template <class T>
HWY_INLINE T lesser(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return times(a, b);
  } else {
    return (b < a || b != b) ? b : a;
  }
}
template <class T>
HWY_INLINE T greater(T a, T b) {
  if constexpr (std::is_same_v<T, Bool>) {
    return plus(a, b);
  } else {
    return (b > a || b != b) ? b : a;
  }
}

template <class T>
HWY_INLINE void combine(fsccl_op_kind_t op, T* acc, const T* other, size_t count) {
  switch (op) {
    case FSCCL_OP_MIN:
      for (size_t i = 0; i < count; ++i) acc[i] = lesser(acc[i], other[i]);
      break;
    case FSCCL_OP_MAX:
      for (size_t i = 0; i < count; ++i) acc[i] = greater(acc[i], other[i]);
      break;
    case FSCCL_OP_PROD:
      for (size_t i = 0; i < count; ++i) acc[i] = times(acc[i], other[i]);
      break;
    default:
      for (size_t i = 0; i < count; ++i) acc[i] = plus(acc[i], other[i]);
  }
}

template <class T>
void general_integer(const Reduce& args, const KernelTable&) {
  // The average of booleans is "all of them"; the sum is "any".
  const bool is_bool = std::is_same_v<T, Bool>;
  const fsccl_op_kind_t op = is_bool && args.op == FSCCL_OP_AVG ? FSCCL_OP_PROD : args.op;
  T acc[kBlock], other[kBlock];
  for (size_t begin = 0; begin < args.count; begin += kBlock) {
    const size_t count = args.count - begin < kBlock ? args.count - begin : kBlock;
    const size_t offset = begin * sizeof(T), bytes = count * sizeof(T);
    std::memcpy(acc, static_cast<const char*>(args.sources[0]) + offset, bytes);
    for (int s = 1; s < args.n; ++s) {
      std::memcpy(other, static_cast<const char*>(args.sources[s]) + offset, bytes);
      combine(op, acc, other, count);
    }
    if constexpr (std::is_same_v<T, Bool>) {
      for (size_t i = 0; i < count; ++i) acc[i].value = acc[i].value != 0;
    } else if (op == FSCCL_OP_AVG && args.divisor != 1) {
      using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
      for (size_t i = 0; i < count; ++i)
        acc[i] = static_cast<T>(static_cast<Wide>(acc[i]) / static_cast<Wide>(args.divisor));
    }
    char* dst = static_cast<char*>(args.dst) + offset;
    if (args.accumulate) {
      std::memcpy(other, dst, bytes);
      combine(FSCCL_OP_SUM, acc, other, count);
    }
    std::memcpy(dst, acc, bytes);
  }
}

// Converts `count` elements of `type` at `from` to the accumulator's type A.
template <class A>
HWY_INLINE void widen(A* to, const void* from, fsccl_dtype_t type, size_t count,
                      const KernelTable& table) {
  constexpr int kAccumulator =
      std::is_same_v<A, double> ? float_index(FSCCL_FLOAT64) : float_index(FSCCL_FLOAT32);
  const KernelTable::Cast cast_block = table.cast[kAccumulator][float_index(type)];
  if (cast_block == nullptr) {
    std::memcpy(to, from, count * sizeof(A));
  } else {
    cast_block(to, from, count, Variant());
  }
}

template <class A>
HWY_INLINE void multiply(A* acc, A factor, size_t count) {
  for (size_t i = 0; i < count; ++i) acc[i] *= factor;
}
template <class A>
HWY_INLINE void finish(A* acc, Quotient<A> quotient, size_t count) {
  multiply(acc, quotient.factor, count);
  for (size_t i = 0; i < count && quotient.divides(); ++i) acc[i] /= quotient.divisor;
}

// Adds the squares of `values` to the 16 partial sums. The values begin at a multiple of 16 within
// their norm block.
template <class A>
HWY_INLINE void add_squares(const A* values, size_t count, double* partial, bool& finite) {
  A poison = 0;
  size_t i = 0;
  for (; i + kNormPartials <= count; i += kNormPartials) {
    for (size_t k = 0; k < kNormPartials; ++k) {
      const double x = static_cast<double>(values[i + k]);
      partial[k] += x * x;
    }
  }
  for (size_t k = 0; i < count; ++i, ++k)
    partial[k] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  for (i = 0; i < count; ++i) poison += values[i] - values[i];  // 0, or NaN where not finite
  finite = finite && poison == 0;
}

template <class A>
void general_float(const Reduce& args, const KernelTable& table) {
  constexpr int kAccumulator =
      std::is_same_v<A, double> ? float_index(FSCCL_FLOAT64) : float_index(FSCCL_FLOAT32);
  const size_t from_size = dtype_size(args.from), to_size = dtype_size(args.to);
  const KernelTable::Cast narrow = table.cast[float_index(args.to)][kAccumulator];
  const bool premul = args.op == FSCCL_OP_PREMUL_SUM;
  A acc[kBlock], other[kBlock];
  double partial[kNormPartials] = {};
  bool finite = true;
  for (size_t begin = 0; begin < args.count; begin += kBlock) {
    const size_t count = args.count - begin < kBlock ? args.count - begin : kBlock;
    for (int s = 0; s < args.n; ++s) {
      A* block = s == 0 ? acc : other;
      widen(block, static_cast<const char*>(args.sources[s]) + begin * from_size, args.from, count,
            table);
      if (premul) multiply(block, static_cast<A>(args.premul), count);
      if (s > 0) combine(args.op, acc, other, count);
    }
    finish(acc, Quotient<A>(args.scale, args.divisor), count);
    char* dst = static_cast<char*>(args.dst) + begin * to_size;
    if (args.accumulate) {
      widen(other, dst, args.to, count, table);
      combine(FSCCL_OP_SUM, acc, other, count);
    }
    // Every NaN becomes the same one, because it differs between machines which operand's payload
    // survives.
    for (size_t i = 0; i < count; ++i)
      acc[i] = acc[i] == acc[i] ? acc[i] : std::numeric_limits<A>::quiet_NaN();
    if (narrow == nullptr) {
      std::memcpy(dst, acc, count * sizeof(A));
    } else {
      narrow(dst, acc, count, Variant());
    }
    if (args.norm == nullptr) continue;
    if (narrow != nullptr) widen(acc, dst, args.to, count, table);
    add_squares(acc, count, partial, finite);
    if ((begin + count) % kNormBlock == 0 || begin + count == args.count) {
      add_norm_block(partial, true, finite, *args.norm);
      std::memset(partial, 0, sizeof partial);
    }
  }
}

void install_general_here(KernelTable& table) {
  table.general[FSCCL_INT8] = general_integer<int8_t>;
  table.general[FSCCL_UINT8] = general_integer<uint8_t>;
  table.general[FSCCL_INT16] = general_integer<int16_t>;
  table.general[FSCCL_UINT16] = general_integer<uint16_t>;
  table.general[FSCCL_INT32] = general_integer<int32_t>;
  table.general[FSCCL_UINT32] = general_integer<uint32_t>;
  table.general[FSCCL_INT64] = general_integer<int64_t>;
  table.general[FSCCL_UINT64] = general_integer<uint64_t>;
  table.general[FSCCL_BOOL] = general_integer<Bool>;
  table.general[FSCCL_FLOAT32] = general_float<float>;
  table.general[FSCCL_FLOAT64] = general_float<double>;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_INSTALL(install_general)
}  // namespace fsccl
#endif
