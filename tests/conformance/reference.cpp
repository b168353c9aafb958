#include "reference.h"

#include <algorithm>
#include <bit>

#include "support.h"

namespace fsccl::testing {
namespace {

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

float from_float16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const float sign = bits >> 15 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? std::nanf("") : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(1024 + fraction), exponent - 25);
}

// Rounds `value` once, to nearest even, from fp64 straight to a 16-bit float with this many
// fraction bits and this least exponent.
uint16_t to_half(double value, int fraction_bits, int least_exponent) {
  const auto sign = static_cast<uint32_t>(std::signbit(value) ? 0x8000 : 0);
  const uint32_t infinity = 0x8000u - (1u << fraction_bits);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | infinity | 1u << (fraction_bits - 1));
  const double size = std::fabs(value);
  if (std::isinf(size)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = size > 0 ? std::max(std::ilogb(size), least_exponent) : least_exponent;
  // nearbyint rounds to nearest even in the default mode. A normal value's leading bit adds one to
  // the exponent field, and so does a carry out of the fraction.
  const auto units =
      static_cast<uint32_t>(std::nearbyint(std::ldexp(size, fraction_bits - exponent)));
  const uint32_t bits = (static_cast<uint32_t>(exponent - least_exponent) << fraction_bits) + units;
  return static_cast<uint16_t>(sign | std::min(bits, infinity));
}
uint16_t to_bfloat16(double value) { return to_half(value, 7, -126); }
uint16_t to_float16(double value) { return to_half(value, 10, -14); }

template <class T>
T load(const void* place, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(place) + index * sizeof(T), sizeof value);
  return value;
}
template <class T>
void store(void* place, size_t index, T value) {
  std::memcpy(static_cast<char*>(place) + index * sizeof(T), &value, sizeof value);
}

template <class Accumulator>
Accumulator fold_floats(fsccl_dtype_t dtype, fsccl_op_t op, const std::vector<const void*>& sources,
                        size_t i) {
  const bool premul = op.kind == FSCCL_OP_PREMUL_SUM;
  auto contribution = [&](size_t q) {
    const auto value = static_cast<Accumulator>(load_float(dtype, sources[q], i));
    return premul ? value * static_cast<Accumulator>(op.scale) : value;
  };
  Accumulator result = contribution(0);
  bool nan = std::isnan(result);
  for (size_t q = 1; q < sources.size(); ++q) {
    const Accumulator value = contribution(q);
    nan = nan || std::isnan(value);
    switch (op.kind) {
      case FSCCL_OP_MIN:
        result = std::min(result, value);
        break;
      case FSCCL_OP_MAX:
        result = std::max(result, value);
        break;
      case FSCCL_OP_PROD:
        result = result * value;
        break;
      default:
        result = result + value;
    }
  }
  if (op.kind == FSCCL_OP_AVG) result = result / static_cast<Accumulator>(sources.size());
  return nan ? std::numeric_limits<Accumulator>::quiet_NaN() : result;
}

template <class T>
T fold_integers(fsccl_op_t op, const std::vector<const void*>& sources, size_t i) {
  using Wrapping = std::make_unsigned_t<T>;
  T result = load<T>(sources[0], i);
  for (size_t q = 1; q < sources.size(); ++q) {
    const T value = load<T>(sources[q], i);
    switch (op.kind) {
      case FSCCL_OP_MIN:
        result = std::min(result, value);
        break;
      case FSCCL_OP_MAX:
        result = std::max(result, value);
        break;
      case FSCCL_OP_PROD:
        result = static_cast<T>(
            static_cast<Wrapping>(static_cast<uint64_t>(result) * static_cast<uint64_t>(value)));
        break;
      default:
        result = static_cast<T>(
            static_cast<Wrapping>(static_cast<Wrapping>(result) + static_cast<Wrapping>(value)));
    }
  }
  if (op.kind == FSCCL_OP_AVG) {
    if constexpr (std::is_signed_v<T>)
      result = static_cast<T>(int64_t{result} / static_cast<int64_t>(sources.size()));
    else
      result = static_cast<T>(uint64_t{result} / sources.size());
  }
  return result;
}

uint8_t fold_bools(fsccl_op_t op, const std::vector<const void*>& sources, size_t i) {
  const bool any = op.kind == FSCCL_OP_SUM || op.kind == FSCCL_OP_MAX;
  bool result = !any;
  for (const void* source : sources) {
    const bool value = load<uint8_t>(source, i) != 0;
    result = any ? result || value : result && value;
  }
  return result;
}

}  // namespace

const char* name_of(fsccl_dtype_t dtype) {
  constexpr const char* kNames[] = {"int8",    "uint8",   "int16",  "uint16",  "int32",
                                    "uint32",  "int64",   "uint64", "float16", "bfloat16",
                                    "float32", "float64", "bool",   "e4m3",    "e5m2"};
  return kNames[dtype];
}
const char* name_of(fsccl_op_kind_t kind) {
  constexpr const char* kNames[] = {"sum", "avg", "min", "max", "prod", "premul_sum"};
  return kNames[kind];
}

double load_float(fsccl_dtype_t dtype, const void* place, size_t index) {
  switch (dtype) {
    case FSCCL_FLOAT16:
      return from_float16(load<uint16_t>(place, index));
    case FSCCL_BFLOAT16:
      return from_bfloat16(load<uint16_t>(place, index));
    case FSCCL_FLOAT32:
      return load<float>(place, index);
    default:
      return load<double>(place, index);
  }
}

void store_float(fsccl_dtype_t dtype, void* place, size_t index, double value) {
  switch (dtype) {
    case FSCCL_FLOAT16:
      return store(place, index, to_float16(value));
    case FSCCL_BFLOAT16:
      return store(place, index, to_bfloat16(value));
    case FSCCL_FLOAT32:
      return store(place, index, static_cast<float>(value));
    default:
      return store(place, index, value);
  }
}

double round_to(fsccl_dtype_t dtype, double value) {
  double place = 0;
  store_float(dtype, &place, 0, value);
  return load_float(dtype, &place, 0);
}

void reference_reduce(fsccl_dtype_t dtype, fsccl_op_t op, const std::vector<const void*>& sources,
                      size_t count, void* dst) {
  for (size_t i = 0; i < count; ++i) switch (dtype) {
      case FSCCL_INT8:
        store(dst, i, fold_integers<int8_t>(op, sources, i));
        break;
      case FSCCL_UINT8:
        store(dst, i, fold_integers<uint8_t>(op, sources, i));
        break;
      case FSCCL_INT16:
        store(dst, i, fold_integers<int16_t>(op, sources, i));
        break;
      case FSCCL_UINT16:
        store(dst, i, fold_integers<uint16_t>(op, sources, i));
        break;
      case FSCCL_INT32:
        store(dst, i, fold_integers<int32_t>(op, sources, i));
        break;
      case FSCCL_UINT32:
        store(dst, i, fold_integers<uint32_t>(op, sources, i));
        break;
      case FSCCL_INT64:
        store(dst, i, fold_integers<int64_t>(op, sources, i));
        break;
      case FSCCL_UINT64:
        store(dst, i, fold_integers<uint64_t>(op, sources, i));
        break;
      case FSCCL_BOOL:
        store(dst, i, fold_bools(op, sources, i));
        break;
      case FSCCL_FLOAT64:
        store(dst, i, fold_floats<double>(dtype, op, sources, i));
        break;
      default:
        store_float(dtype, dst, i, static_cast<double>(fold_floats<float>(dtype, op, sources, i)));
    }
}

namespace {

template <class A>
double gradient_in(const std::vector<std::vector<double>>& groups, const Finish& finish,
                   const double* before) {
  A sum = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    auto part = static_cast<A>(groups[g][0]);
    for (size_t q = 1; q < groups[g].size(); ++q) part = part + static_cast<A>(groups[g][q]);
    sum = g ? sum + part : part;
  }
  sum = sum * static_cast<A>(finish.scale) / static_cast<A>(finish.divisor);
  return static_cast<double>(before ? static_cast<A>(*before) + sum : sum);
}

}  // namespace

double reference_gradient(fsccl_dtype_t from, fsccl_dtype_t to,
                          const std::vector<std::vector<double>>& groups, const Finish& finish,
                          const double* before) {
  const bool wide = from == FSCCL_FLOAT64 || to == FSCCL_FLOAT64;
  return wide ? gradient_in<double>(groups, finish, before)
              : gradient_in<float>(groups, finish, before);
}

bool agree(fsccl_dtype_t dtype, const void* a, const void* b, size_t index) {
  const size_t size = fsccl_dtype_size(dtype);
  const char *x = static_cast<const char*>(a) + index * size,
             *y = static_cast<const char*>(b) + index * size;
  if (std::memcmp(x, y, size) == 0) return true;
  if (!is_float(dtype)) return false;
  const double p = load_float(dtype, a, index), q = load_float(dtype, b, index);
  return std::isnan(p) && std::isnan(q);
}

void fill_values(fsccl_dtype_t dtype, void* place, size_t count, uint64_t seed, bool tame) {
  Random random(seed);
  const size_t size = fsccl_dtype_size(dtype);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = random.next();
    if (dtype == FSCCL_BOOL) {
      store(place, i, static_cast<uint8_t>(bits & 1));
    } else if (is_float(dtype)) {
      const double unit = static_cast<double>(bits >> 11) * 0x1p-53;
      // Magnitudes go from 2^-6 to 2^6, so that sums depend on their order.
      const double value =
          tame ? 0.5 + unit : (unit * 2 - 1) * std::ldexp(1.0, static_cast<int>(bits & 7) * 2 - 6);
      store_float(dtype, place, i,
                  dtype == FSCCL_FLOAT64 ? value : static_cast<double>(static_cast<float>(value)));
    } else {
      std::memcpy(static_cast<char*>(place) + i * size, &bits, size);
    }
  }
}

}  // namespace fsccl::testing
