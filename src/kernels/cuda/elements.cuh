// Conversions of elements in registers, with the bits that the host's kernels give (group_inl.h,
// cast.cpp), and the loads and stores of four elements at a time. NaN are converted with integer
// arithmetic, because the NaN that the GPU's conversions give have another payload.
#pragma once
#include "kernels/cuda/launches.h"

#ifdef __CUDACC__
#define FSCCL_UNROLL _Pragma("unroll")
#define FSCCL_ROLLED _Pragma("unroll 1")
namespace fsccl::cuda {
// These two round to nearest even and keep subnormals. The bits of a NaN are those that the
// hardware gives.
__device__ __forceinline__ float float_of_half(unsigned short bits) {
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ unsigned short half_of_float(float value) {
  unsigned short bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
// Returns the thread's number, read from its register again at each call. Otherwise the compiler
// would compute addresses from threadIdx before the loops and keep them in registers throughout.
__device__ __forceinline__ unsigned thread_anew() {
  unsigned number;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(number));
  return number;
}
}  // namespace fsccl::cuda
#endif

namespace fsccl::cuda {

struct Fp16 {
  unsigned short bits;
};
struct Bf16 {
  unsigned short bits;
};

// ---- Conversions of numbers. The bits of NaN may differ from the host's, except from bf16 to
// fp32, where all bits are kept. So the others are used for a NaN only where its bits do not
// matter: a reduce replaces it by plain() later, or only its square goes into the norm.

template <class To>
__device__ __forceinline__ To widen(Fp16 x) {
  return float_of_half(x.bits);
}
template <class To>
__device__ __forceinline__ To widen(Bf16 x) {
  return __uint_as_float(static_cast<unsigned>(x.bits) << 16);
}
template <class To>
__device__ __forceinline__ To widen(float x) {
  return x;
}
template <class To>
__device__ __forceinline__ To widen(double x) {
  return static_cast<To>(x);
}

// Makes every NaN the same one, because the bits of others differ between machines.
__device__ __forceinline__ float plain(float x) {
  return x == x ? x : __uint_as_float(0x7fc00000u);
}
__device__ __forceinline__ double plain(double x) {
  return x == x ? x : __longlong_as_double(0x7ff8ll << 48);
}

// ---- Conversions of all values, NaN included: convert(x, To()).

__device__ __forceinline__ float convert(float x, float) { return x; }
__device__ __forceinline__ double convert(double x, double) { return x; }
__device__ __forceinline__ float convert(Bf16 x, float) { return widen<float>(x); }
__device__ __forceinline__ float convert(Fp16 x, float) {
  const unsigned payload = x.bits & 0x3ffu, magnitude = x.bits & 0x7fffu;
  if (magnitude <= 0x7c00u) return widen<float>(x);
  return __uint_as_float((x.bits & 0x8000u) << 16 | 0x7fc00000u | payload << 13);
}
__device__ __forceinline__ double convert(float x, double) {
  if (x == x) return static_cast<double>(x);
  const unsigned bits = __float_as_uint(x);
  return __longlong_as_double(static_cast<long long>(
      static_cast<unsigned long long>(bits & 0x80000000u) << 32 | 0x7ff8ull << 48 |
      static_cast<unsigned long long>(bits & 0x3fffffu) << 29));
}
__device__ __forceinline__ float convert(double x, float) {
  if (x == x) return static_cast<float>(x);
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  return __uint_as_float(static_cast<unsigned>(bits >> 32 & 0x80000000u) | 0x7fc00000u |
                         static_cast<unsigned>(bits >> 29 & 0x3fffffu));
}
__device__ __forceinline__ Bf16 convert(float x, Bf16) {
  const unsigned bits = __float_as_uint(x), odd = bits >> 16 & 1u;
  return {static_cast<unsigned short>((x == x ? bits + 0x7fffu + odd : bits | 0x400000u) >> 16)};
}
__device__ __forceinline__ Fp16 convert(float x, Fp16) {
  const unsigned bits = __float_as_uint(x);
  if (x == x) return {half_of_float(x)};
  return {static_cast<unsigned short>((bits >> 16 & 0x8000u) | 0x7e00u | (bits >> 13 & 0x3ffu))};
}

// Converts towards zero and sets the last bit if the result is inexact. A second rounding, to 16
// bits, then gives what a single rounding from fp64 would.
__device__ __forceinline__ float round_to_odd(double x) {
  const float near = convert(x, float());
  const double back = static_cast<double>(near);
  const bool away = (x >= 0 && back > x) || (x < 0 && back < x);
  return __uint_as_float((__float_as_uint(near) - (away ? 1u : 0u)) | (back != x ? 1u : 0u));
}
__device__ __forceinline__ Bf16 convert(double x, Bf16) { return convert(round_to_odd(x), Bf16()); }
__device__ __forceinline__ Fp16 convert(double x, Fp16) { return convert(round_to_odd(x), Fp16()); }
template <class From, class To>
// From a 16-bit type, through fp32, which holds all values of both 16-bit types.
__device__ __forceinline__ To convert(From x, To) {
  return convert(convert(x, float()), To());
}

// ---- Four elements, in whole registers.

template <class T>
struct Quad {
  unsigned words[sizeof(T)];
};

template <class T>
__device__ __forceinline__ T element(const Quad<T>& quad, int i) {
  if constexpr (sizeof(T) == 2) {
    return {static_cast<unsigned short>(quad.words[i / 2] >> (16 * (i % 2)))};
  } else if constexpr (sizeof(T) == 4) {
    return __uint_as_float(quad.words[i]);
  } else {
    return __hiloint2double(static_cast<int>(quad.words[2 * i + 1]),
                            static_cast<int>(quad.words[2 * i]));
  }
}
template <class T>
__device__ __forceinline__ void set_element(Quad<T>& quad, int i, T value) {
  if constexpr (sizeof(T) == 2) {
    quad.words[i / 2] =
        i % 2 ? quad.words[i / 2] | static_cast<unsigned>(value.bits) << 16 : value.bits;
  } else if constexpr (sizeof(T) == 4) {
    quad.words[i] = __float_as_uint(value);
  } else {
    quad.words[2 * i] = static_cast<unsigned>(__double2loint(value));
    quad.words[2 * i + 1] = static_cast<unsigned>(__double2hiint(value));
  }
}

// The alignment that loads and stores of four elements need. Four fp64 are two vectors of 16 bytes.
template <class T>
inline constexpr unsigned kQuadBytes = sizeof(T) == 2 ? 8 : 16;

__device__ __forceinline__ unsigned quad_bytes(uint32_t element) {
  return element < kFp32 ? 8 : 16;
}
__device__ __forceinline__ unsigned element_bytes(uint32_t element) {
  return element == kBytes ? 1 : element < kFp32 ? 2 : 1u << element;
}

template <class T>
__device__ __forceinline__ T load_single(const T* from) {
  if constexpr (sizeof(T) == 2) {
    return {__ldcs(reinterpret_cast<const unsigned short*>(from))};
  } else {
    return __ldcs(from);
  }
}
template <class T>
__device__ __forceinline__ void store_single(T* to, T value) {
  if constexpr (sizeof(T) == 2) {
    __stcs(reinterpret_cast<unsigned short*>(to), value.bits);
  } else {
    __stcs(to, value);
  }
}

// The loads and stores mark their lines to be evicted first, because each element is read or
// written once. Loads do not take the read-only path, because a reduce may be in place.
template <class T>
__device__ __forceinline__ Quad<T> load_quad(const T* from) {
  if constexpr (sizeof(T) == 2) {
    const uint2 x = __ldcs(reinterpret_cast<const uint2*>(from));
    return {{x.x, x.y}};
  } else {
    const auto* const vectors = reinterpret_cast<const uint4*>(from);
    Quad<T> quad;
    FSCCL_UNROLL
    for (unsigned k = 0; k < sizeof(T) / 4; k++) {
      const uint4 x = __ldcs(vectors + k);
      quad.words[4 * k] = x.x, quad.words[4 * k + 1] = x.y, quad.words[4 * k + 2] = x.z,
                     quad.words[4 * k + 3] = x.w;
    }
    return quad;
  }
}
template <class T>
__device__ __forceinline__ void store_quad(T* to, const Quad<T>& quad) {
  if constexpr (sizeof(T) == 2) {
    __stcs(reinterpret_cast<uint2*>(to), make_uint2(quad.words[0], quad.words[1]));
  } else {
    FSCCL_UNROLL
    for (unsigned k = 0; k < sizeof(T) / 4; k++)
      __stcs(reinterpret_cast<uint4*>(to) + k,
             make_uint4(quad.words[4 * k], quad.words[4 * k + 1], quad.words[4 * k + 2],
                        quad.words[4 * k + 3]));
  }
}

template <class T>
__device__ __forceinline__ T* at(uint64_t address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace fsccl::cuda
