#include "verify.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>

namespace fsccl::perf {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
template <class T>
constexpr bool kIsFloat =
    std::is_floating_point_v<T> || std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

inline uint32_t mix(uint32_t seed, uint32_t index) {
  uint32_t h = index * 0x9E3779B1u ^ seed;
  h ^= h >> 15;
  h *= 0x85EBCA6Bu;
  h ^= h >> 13;
  h *= 0xC2B2AE35u;
  return h ^ h >> 16;
}
// Hashes a 64-bit index, so that vectors of more than 2^32 elements do not repeat themselves.
inline uint32_t place(uint64_t index) {
  return static_cast<uint32_t>(index) ^ static_cast<uint32_t>(index >> 32) * 0x27D4EB2Fu;
}

double to_double(float value) { return static_cast<double>(value); }
double to_double(double value) { return value; }
double to_double(BFloat16 value) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16));
}
double to_double(Half value) {
  const uint32_t exponent = value.bits >> 10 & 31u, fraction = value.bits & 1023u;
  double magnitude = 0;
  if (exponent == 31)
    magnitude = fraction ? std::numeric_limits<double>::quiet_NaN()
                         : std::numeric_limits<double>::infinity();
  else if (exponent == 0)
    magnitude = std::ldexp(fraction, -24);
  else
    magnitude = std::ldexp(1024 + fraction, static_cast<int>(exponent) - 25);
  return value.bits & 0x8000u ? -magnitude : magnitude;
}

// Returns the bits of a float whose fraction has only bits of `mask`, so that the type to which the
// mask belongs represents it exactly.
inline uint32_t float_pattern(Seeds seeds, uint32_t index, uint32_t mask, bool near_one) {
  const uint32_t own = mix(seeds.own, index) & mask;
  if (near_one) return 127u << 23 | (own & 0x0FFFFFu);
  // Sign and exponent need no better hash than this.
  const uint32_t common = index * 0x9E3779B1u ^ seeds.common;
  return (common & 0x80000000u) | (123u + (common >> 28 & 7u)) << 23 | own;
}

template <class T>
inline T value_at(Seeds seeds, uint64_t index, bool near_one) {
  const uint32_t i = place(index);
  if constexpr (std::is_same_v<T, BFloat16>) {
    return BFloat16{static_cast<uint16_t>(float_pattern(seeds, i, 0x7F0000u, near_one) >> 16)};
  } else if constexpr (std::is_same_v<T, Half>) {
    const uint32_t bits = float_pattern(seeds, i, 0x7FE000u, near_one);
    return Half{static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                                      ((bits & 0x7FFFFFFFu) - (112u << 23)) >> 13)};
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(std::bit_cast<float>(float_pattern(seeds, i, 0x7FFFFFu, near_one)));
  } else if constexpr (sizeof(T) == 8) {
    return static_cast<T>(static_cast<uint64_t>(mix(seeds.own, i)) << 32 | mix(~seeds.own, i));
  } else {
    return static_cast<T>(mix(seeds.own, i));
  }
}

template <class T>
bool same_bits(T a, T b) {
  if constexpr (std::is_same_v<T, float>)
    return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
  else if constexpr (std::is_same_v<T, double>)
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  else if constexpr (kIsFloat<T>)
    return a.bits == b.bits;
  else
    return a == b;
}

// Calls f with a value of the C++ type of `dtype`. Returns false for a type that this tool does not
// know.
template <class F>
bool with_type(fsccl_dtype_t dtype, F&& f) {
  switch (dtype) {
    case FSCCL_INT8:
      f(int8_t{});
      return true;
    case FSCCL_UINT8:
      f(uint8_t{});
      return true;
    case FSCCL_INT16:
      f(int16_t{});
      return true;
    case FSCCL_UINT16:
      f(uint16_t{});
      return true;
    case FSCCL_INT32:
      f(int32_t{});
      return true;
    case FSCCL_UINT32:
      f(uint32_t{});
      return true;
    case FSCCL_INT64:
      f(int64_t{});
      return true;
    case FSCCL_UINT64:
      f(uint64_t{});
      return true;
    case FSCCL_FLOAT16:
      f(Half{});
      return true;
    case FSCCL_BFLOAT16:
      f(BFloat16{});
      return true;
    case FSCCL_FLOAT32:
      f(float{});
      return true;
    case FSCCL_FLOAT64:
      f(double{});
      return true;
    default:
      return false;
  }
}

constexpr uint64_t kChunk = 512;

// The accumulator of the reference: fp64 for floating point, and the type itself for integers,
// whose sums wrap (combine()).
template <class In, bool kFloat = kIsFloat<In>>
struct Accumulator {
  using type = double;
};
template <class In>
struct Accumulator<In, false> {
  using type = In;
};

template <class A>
A combine(A sum, A value, fsccl_op_t op) {
  switch (op.kind) {
    case FSCCL_OP_MIN:
      return std::min(sum, value);
    case FSCCL_OP_MAX:
      return std::max(sum, value);
    default:
      break;
  }
  if constexpr (std::is_floating_point_v<A>) {
    return op.kind == FSCCL_OP_PROD
               ? sum * value
               : sum + (op.kind == FSCCL_OP_PREMUL_SUM ? value * op.scale : value);
  } else {
    // The arithmetic is that of unsigned 64 bits, in which wrapping is defined and whose low bits
    // are those of the type's own arithmetic.
    const uint64_t a = static_cast<uint64_t>(sum), b = static_cast<uint64_t>(value);
    return static_cast<A>(op.kind == FSCCL_OP_PROD ? a * b : a + b);
  }
}

double unit_roundoff(fsccl_dtype_t dtype) {
  return dtype == FSCCL_BFLOAT16  ? 0x1p-8
         : dtype == FSCCL_FLOAT16 ? 0x1p-11
         : dtype == FSCCL_FLOAT32 ? 0x1p-24
                                  : 0x1p-53;
}

// Returns the number of a type beyond which results may round to infinity.
double largest_of(fsccl_dtype_t dtype) {
  return dtype == FSCCL_FLOAT16   ? 65504.0
         : dtype == FSCCL_FLOAT64 ? std::numeric_limits<double>::max()
                                  : static_cast<double>(0x1.fep127f);
}

// Compares a reduced number with what it must be. A product of many ranks may lie beyond the type.
bool is_near(double got, double expected, double tolerance, double largest) {
  if (std::isinf(got) && std::fabs(expected) > largest) return (got < 0) == (expected < 0);
  return std::fabs(got - expected) <= tolerance * std::fabs(expected);
}

template <class In, class Out>
uint64_t wrong_reduced(const Out* data, fsccl_dtype_t output, fsccl_dtype_t input, uint64_t count,
                       uint64_t first, uint32_t stream, uint32_t generation, uint32_t ranks,
                       fsccl_op_t op) {
  using A = typename Accumulator<In>::type;
  const bool near_one = op.kind == FSCCL_OP_PROD,
             exact = op.kind == FSCCL_OP_MIN || op.kind == FSCCL_OP_MAX;
  const double sum_roundoff = unit_roundoff(input == FSCCL_FLOAT64 ? FSCCL_FLOAT64 : FSCCL_FLOAT32);
  const double tolerance =
      exact ? 0
            : 1.01 * ((ranks + 1) * sum_roundoff * (input == FSCCL_FLOAT64 ? 2 : 1) +
                      unit_roundoff(output));
  const double largest = largest_of(output);
  uint64_t wrong = 0;
  A sums[kChunk];
  for (uint64_t begin = 0; begin < count; begin += kChunk) {
    const uint64_t width = std::min(kChunk, count - begin);
    for (uint32_t rank = 0; rank < ranks; rank++) {
      const Seeds seeds = seeds_of(stream, generation, rank);
      for (uint64_t j = 0; j < width; j++) {
        A value;
        if constexpr (kIsFloat<In>)
          value = to_double(value_at<In>(seeds, first + begin + j, near_one));
        else
          value = value_at<In>(seeds, first + begin + j, near_one);
        if (rank == 0)
          sums[j] = op.kind == FSCCL_OP_PREMUL_SUM
                        ? static_cast<A>(static_cast<double>(value) * op.scale)
                        : value;
        else
          sums[j] = combine(sums[j], value, op);
      }
    }
    for (uint64_t j = 0; j < width; j++) {
      if constexpr (kIsFloat<In>) {
        const double expected = op.kind == FSCCL_OP_AVG ? sums[j] / ranks : sums[j];
        wrong += !is_near(to_double(data[begin + j]), expected, tolerance, largest);
      } else if constexpr (std::is_unsigned_v<In>) {
        wrong += data[begin + j] !=
                 (op.kind == FSCCL_OP_AVG ? static_cast<In>(sums[j] / ranks) : sums[j]);
      } else {
        wrong += data[begin + j] != (op.kind == FSCCL_OP_AVG
                                         ? static_cast<In>(sums[j] / static_cast<int64_t>(ranks))
                                         : sums[j]);
      }
    }
  }
  return wrong;
}

}  // namespace

Seeds seeds_of(uint32_t stream, uint32_t generation, uint32_t writer) {
  const uint32_t base = mix(mix(0x5EEDu, stream), generation);
  return {mix(base, ~0u), mix(base, writer)};
}

void fill(void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first, Seeds seeds,
          int32_t op_kind) {
  with_type(dtype, [&](auto type) {
    using T = decltype(type);
    T* out = static_cast<T*>(data);
    for (uint64_t j = 0; j < count; j++)
      out[j] = value_at<T>(seeds, first + j, op_kind == FSCCL_OP_PROD);
  });
}

uint64_t count_wrong_copy(const void* data, fsccl_dtype_t dtype, uint64_t count, uint64_t first,
                          Seeds seeds) {
  uint64_t wrong = 0;
  const bool known = with_type(dtype, [&](auto type) {
    using T = decltype(type);
    const T* in = static_cast<const T*>(data);
    for (uint64_t j = 0; j < count; j++)
      wrong += !same_bits(in[j], value_at<T>(seeds, first + j, false));
  });
  return known ? wrong : count;
}

uint64_t count_wrong_cast(const void* data, fsccl_dtype_t wire, uint64_t count, uint64_t first,
                          Seeds seeds) {
  if (wire == FSCCL_FLOAT32) return count_wrong_copy(data, wire, count, first, seeds);
  if (wire != FSCCL_BFLOAT16 && wire != FSCCL_FLOAT16) return count;
  const uint16_t* in = static_cast<const uint16_t*>(data);
  uint64_t wrong = 0;
  for (uint64_t j = 0; j < count; j++) {
    const float value = value_at<float>(seeds, first + j, false);
    wrong += in[j] != (wire == FSCCL_BFLOAT16 ? bfloat16_bits(value) : half_bits(value));
  }
  return wrong;
}

uint64_t count_wrong_reduced(const void* data, fsccl_dtype_t output, fsccl_dtype_t input,
                             uint64_t count, uint64_t first, uint32_t stream, uint32_t generation,
                             uint32_t ranks, fsccl_op_t op) {
  uint64_t wrong = count;  // for a pair of types that this tool does not know
  with_type(input, [&](auto type) {
    using In = decltype(type);
    if (output == input) {
      wrong = wrong_reduced<In, In>(static_cast<const In*>(data), output, input, count, first,
                                    stream, generation, ranks, op);
    } else if constexpr (kIsFloat<In>) {
      if (output == FSCCL_FLOAT32)
        wrong = wrong_reduced<In, float>(static_cast<const float*>(data), output, input, count,
                                         first, stream, generation, ranks, op);
    }
  });
  return wrong;
}

uint16_t bfloat16_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return static_cast<uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16);
}

uint16_t half_bits(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value),
                 magnitude = (bits & 0x7FFFFFFFu) - (112u << 23);
  return static_cast<uint16_t>((bits >> 16 & 0x8000u) |
                               (magnitude + 0x0FFFu + (magnitude >> 13 & 1u)) >> 13);
}

}  // namespace fsccl::perf
