// The part of CUDA's C++ that the library's kernels use, for a CPU. The host's compiler compiles
// the same source, and a launch runs block after block in the calling thread. The threads of a
// block are fibers, which switch at barriers only. In a kernel without barriers each runs to its
// end. Blocks run from the last to the first, so a block that waits for an earlier one would wait
// for ever.
//
// Arithmetic is the CPU's, so this must be compiled without contraction of floating-point
// operations. Conversions that a GPU makes in hardware are written out with integers here.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#define __device__
#define __global__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define FSCCL_UNROLL
#define FSCCL_ROLLED

struct Dimensions {
  unsigned x, y, z;
};
extern thread_local Dimensions threadIdx, blockIdx, blockDim, gridDim;

void __syncthreads();
// Synchronises the lanes of a warp that `mask` names; all of them must come.
void __syncwarp(unsigned mask);
// Each lane of a warp gets the result over all lanes that `mask` names; all of them must come.
unsigned __reduce_add_sync(unsigned mask, unsigned value);
unsigned __reduce_max_sync(unsigned mask, unsigned value);
unsigned __reduce_xor_sync(unsigned mask, unsigned value);
// Each lane gets the value of the lane whose number differs by `lanes` (exclusive or).
unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned lanes);
float __shfl_xor_sync(unsigned mask, float value, unsigned lanes);

// Runs `thread` for each thread of each block. `barriers` says whether any of them uses a barrier.
void run_grid(const unsigned grid[3], const unsigned block[3], bool barriers,
              void (*thread)(void* launch), void* launch);

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Ends the process. A GPU fails on vectors that are not aligned to their size, so this does, too.
[[noreturn]] void misaligned(const void* address, unsigned bytes);
template <class T>
T __ldcs(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % sizeof(T)) misaligned(from, sizeof(T));
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}
template <class T>
void __stcs(T* to, T value) {
  if (reinterpret_cast<uintptr_t>(to) % sizeof(T)) misaligned(to, sizeof(T));
  std::memcpy(to, &value, sizeof value);
}

template <class To, class From>
To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}
inline int __float2int_rn(float x) { return static_cast<int>(std::nearbyint(x)); }
inline double __fma_rn(double x, double y, double z) { return std::fma(x, y, z); }
inline float __uint_as_float(unsigned bits) { return bits_as<float>(bits); }
inline unsigned __float_as_uint(float value) { return bits_as<unsigned>(value); }
inline double __longlong_as_double(long long bits) { return bits_as<double>(bits); }
inline long long __double_as_longlong(double value) { return bits_as<long long>(value); }
inline int __double2loint(double value) { return static_cast<int>(bits_as<uint64_t>(value)); }
inline int __double2hiint(double value) { return static_cast<int>(bits_as<uint64_t>(value) >> 32); }
inline double __hiloint2double(int high, int low) {
  return bits_as<double>(uint64_t{static_cast<unsigned>(high)} << 32 | static_cast<unsigned>(low));
}

namespace fsccl::cuda {

inline unsigned thread_anew() { return threadIdx.x; }

inline float float_of_half(unsigned short bits) {
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value = exponent ? std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25)
                         : std::ldexp(static_cast<float>(mantissa), -24);
  // This is the NaN that the hardware makes.
  if (exponent == 31) value = mantissa ? __uint_as_float(0x7fffffff) : __uint_as_float(0x7f800000);
  return bits & 0x8000 && value == value ? -value : value;
}

// Rounds to nearest even.
inline unsigned short half_of_float(float value) {
  const unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000,
                 magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return static_cast<unsigned short>(sign | 0x7c00);
  // Below the smallest normal number the last place has always the same value.
  const int exponent = static_cast<int>(magnitude >> 23),
            shift = exponent < 113 ? 126 - exponent : 13;
  if (shift > 25) return static_cast<unsigned short>(sign);
  const unsigned whole =
      exponent < 113 ? (magnitude & 0x7fffff) | 0x800000 : magnitude - (112u << 23);
  const unsigned down = whole >> shift, rest = whole & ((1u << shift) - 1),
                 half = 1u << (shift - 1);
  return static_cast<unsigned short>(sign | (down + (rest > half || (rest == half && down & 1))));
}

}  // namespace fsccl::cuda
