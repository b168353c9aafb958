// What each kind of block codec makes of an element, with the bits of the host's codecs
// (codec/block_codes_inl.h): the scale of a block, a code, and the decoded element.
#pragma once
#include "kernels/cuda/elements.cuh"

namespace fsccl::cuda {

constexpr unsigned kCodecNan = 0x7fc00000u;
constexpr unsigned kLeastMagnitude = (127u - 100u) << 23;
// A decoded value may be larger than the block's largest element, but T must be able to hold it.
template <class T>
constexpr unsigned kMostMagnitude = (127u + 100u) << 23;
template <>
constexpr unsigned kMostMagnitude<Fp16> = (127u + 15u) << 23;
// Below 2^-14 a decoded value would be rounded to a number of fp16 that is too far away.
template <class T>
constexpr unsigned kLeastEncoded = kLeastMagnitude;
template <>
constexpr unsigned kLeastEncoded<Fp16> = (127u - 14u) << 23;

// Returns true if a block with this largest magnitude can be encoded. NaN have larger bits than all
// numbers.
template <class T>
__device__ __forceinline__ bool can_encode(unsigned largest) {
  return largest == 0 || (largest >= kLeastEncoded<T> && largest <= kMostMagnitude<T>);
}

__device__ __forceinline__ unsigned e4m3_of(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits & 0x80000000u, magnitude = bits ^ sign;
  // Below 2^-6 steps are 2^-9: adding 2^14 leaves their number in the low bits, rounded.
  constexpr unsigned kLarge = (127u + 14u) << 23;
  const unsigned tiny =
      __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(kLarge)) - kLarge;
  const unsigned odd = magnitude >> 20 & 1u;
  const unsigned normal = ((magnitude + odd + 0x7ffffu) >> 20) - ((127u - 7u) << 3);
  return (magnitude < (127u - 6u) << 23 ? tiny : normal) | sign >> 24;
}

__device__ __forceinline__ float of_e4m3(unsigned code) {
  constexpr unsigned kSmallest = (127u - 6u) << 23;
  const unsigned sign = (code & 0x80u) << 24, magnitude = (code & 0x7fu) << 20;
  const unsigned normal = magnitude + ((127u - 7u) << 23);
  const unsigned tiny =
      __float_as_uint(__uint_as_float(magnitude + kSmallest) - __uint_as_float(kSmallest));
  return __uint_as_float((magnitude < 8u << 20 ? tiny : normal) | sign);
}

// An element times `inverse` is encoded; a decoded one is multiplied by the scale.
struct Scale {
  float inverse, value;
};

__device__ __forceinline__ Scale scale_of_largest(unsigned largest, float most) {
  const float magnitude = __uint_as_float(largest);
  if (largest == 0) return {0, 0};
  return {most / magnitude, magnitude / most};
}

// A scale in fp32 lies at a multiple of two bytes only if elements before it went exactly.
struct FloatScale {
  static constexpr unsigned kBytes = 4;
  static __device__ __forceinline__ void put(unsigned char* to, float value) {
    const unsigned bits = __float_as_uint(value);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) to[k] = static_cast<unsigned char>(bits >> (8 * k));
  }
  static __device__ __forceinline__ float get(const unsigned char* from) {
    return __uint_as_float(from[0] | from[1] << 8 | from[2] << 16 |
                           static_cast<unsigned>(from[3]) << 24);
  }
};

// Codes of one byte for each element.
struct ByteCodes {
  static __device__ __forceinline__ unsigned code_bytes(unsigned count) {
    return (count + 15) / 16 * 16;
  }
};

struct Int8Codes : FloatScale, ByteCodes {
  static __device__ __forceinline__ Scale scale(unsigned largest) {
    return scale_of_largest(largest, 127.0f);
  }
  static __device__ __forceinline__ unsigned encode(float x) {
    return static_cast<unsigned>(__float2int_rn(x)) & 255u;
  }
  static __device__ __forceinline__ float decode(unsigned code) {
    return static_cast<float>(static_cast<signed char>(code));
  }
};

struct E4m3Codes : ByteCodes {
  static __device__ __forceinline__ unsigned encode(float x) { return e4m3_of(x) & 255u; }
  static __device__ __forceinline__ float decode(unsigned code) { return of_e4m3(code); }
};

struct Fp8Codes : FloatScale, E4m3Codes {
  static __device__ __forceinline__ Scale scale(unsigned largest) {
    return scale_of_largest(largest, 448.0f);
  }
};

// The scale is a power of two, of which the exponent is kept.
struct MxFp8Codes : E4m3Codes {
  static constexpr unsigned kBytes = 1;
  static __device__ __forceinline__ Scale scale(unsigned largest) {
    if (largest == 0) return {1, 1};
    const unsigned power = (largest >> 23) - 8 + ((largest & 0x7fffffu) > 0x600000u ? 1 : 0);
    return {__uint_as_float((254u - power) << 23), __uint_as_float(power << 23)};
  }
  static __device__ __forceinline__ void put(unsigned char* to, float value) {
    const unsigned exponent = __float_as_uint(value) >> 23;
    *to = static_cast<unsigned char>(value == value ? exponent : 255u);
  }
  static __device__ __forceinline__ float get(const unsigned char* from) {
    return __uint_as_float(*from == 255 ? kCodecNan : static_cast<unsigned>(*from) << 23);
  }
};

// Four elements from number `i` on, as fp32. Those from number `count` on are zero.
template <class T>
__device__ __forceinline__ void load_four(const T* from, unsigned i, unsigned count,
                                          float (&x)[4]) {
  if (i + 4 <= count && reinterpret_cast<uint64_t>(from) % kQuadBytes<T> == 0) {
    const Quad<T> quad = load_quad(from + i);
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) x[k] = convert(element(quad, k), float());
    return;
  }
  FSCCL_UNROLL
  for (unsigned k = 0; k < 4; k++) x[k] = i + k < count ? convert(from[i + k], float()) : 0.0f;
}

template <class T>
__device__ __forceinline__ void store_four(T* to, unsigned i, unsigned count, const float (&x)[4]) {
  if (i + 4 <= count && reinterpret_cast<uint64_t>(to) % kQuadBytes<T> == 0) {
    Quad<T> quad;
    FSCCL_UNROLL
    for (int k = 0; k < 4; k++) set_element(quad, k, convert(x[k], T()));
    store_quad(to + i, quad);
    return;
  }
  FSCCL_UNROLL
  for (unsigned k = 0; k < 4; k++)
    if (i + k < count) to[i + k] = convert(x[k], T());
}

}  // namespace fsccl::cuda
