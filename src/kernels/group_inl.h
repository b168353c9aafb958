// A group is 16 consecutive elements in the accumulator's precision, in as few vectors as the
// instruction set allows. Its size is 16 because the norm has 16 partial sums: so the bits of the
// norm are the same for every vector width. Loads and stores of groups convert between types and
// give the same bits on every instruction set. Where the instruction set has no conversion that
// gives these bits, the conversion is written out in integer arithmetic. This header is included
// once for each instruction set of a file, so its include guard toggles.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(FSCCL_KERNELS_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSCCL_KERNELS_GROUP_INL_H_
#undef FSCCL_KERNELS_GROUP_INL_H_
#else
#define FSCCL_KERNELS_GROUP_INL_H_
#endif

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/variants.h"

#undef FSCCL_HARDWARE_FP16
#if (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !defined(HWY_DISABLE_F16C)
#define FSCCL_HARDWARE_FP16 1
#else
#define FSCCL_HARDWARE_FP16 0
#endif

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

inline constexpr size_t kGroup = 16;
inline constexpr size_t kLineBytes = 64, kPageBytes = 4096;

struct Fp16 {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

template <class T>
using Tag = hn::CappedTag<T, kGroup>;
template <class T>
inline constexpr size_t kLanes = hn::MaxLanes(Tag<T>());
template <class T>
inline constexpr size_t kVectors = kGroup / kLanes<T>;

using Floats = Tag<float>;
using Doubles = Tag<double>;
using FloatBits = hn::RebindToUnsigned<Floats>;
using HalfBits = hn::Rebind<uint16_t, Floats>;  // as many 16-bit lanes as Floats has

template <class T>
struct Group {
  using D = Tag<T>;
  hn::Vec<D> v[kVectors<T>];
};

// Does with a complete line of the destination what kStore asks for.
template <Variant::Store kStore>
HWY_INLINE void leave_line([[maybe_unused]] const void* line) {
#if HWY_ARCH_X86
  if constexpr (kStore == Variant::Store::demote)
    asm volatile("cldemote (%0)" : : "r"(line) : "memory");
  if constexpr (kStore == Variant::Store::write_back)
    asm volatile("clwb (%0)" : : "r"(line) : "memory");
#endif
}

// Copies fewer than 2 * kLargest bytes, a multiple of kUnit. It costs less than a call of memcpy.
template <size_t kLargest, size_t kUnit>
HWY_INLINE void copy_small(void* dst, const void* src, size_t bytes) {
  char* to = static_cast<char*>(dst);
  const char* from = static_cast<const char*>(src);
  if (bytes & kLargest) {
    std::memcpy(to, from, kLargest);
    to += kLargest;
    from += kLargest;
  }
  if constexpr (kLargest > kUnit) copy_small<kLargest / 2, kUnit>(to, from, bytes);
}
// Copies fewer than 16 elements.
template <class T>
HWY_INLINE void copy_few(T* dst, const T* src, size_t count) {
  copy_small<kGroup / 2 * sizeof(T), sizeof(T)>(dst, src, count * sizeof(T));
}

template <class T>
HWY_INLINE Group<T> zero_group() {
  Group<T> g;
  for (size_t k = 0; k < kVectors<T>; ++k) g.v[k] = hn::Zero(Tag<T>());
  return g;
}

// ---- fp16 <-> fp32. Without an instruction for it, integer arithmetic gives the bits that the
// hardware's instruction gives: subnormals are exact, and NaN become quiet and keep the top bits of
// their payload.

HWY_INLINE hn::Vec<Floats> fp16_to_float(hn::Vec<HalfBits> half) {
#if FSCCL_HARDWARE_FP16
  return hn::PromoteTo(Floats(), hn::BitCast(hn::Rebind<hwy::float16_t, Floats>(), half));
#else
  const FloatBits d;
  const auto wide = hn::PromoteTo(d, half);
  const auto magnitude = hn::ShiftLeft<13>(hn::And(wide, hn::Set(d, 0x7fffu)));
  const auto sign = hn::ShiftLeft<16>(hn::And(wide, hn::Set(d, 0x8000u)));
  const auto exponent = hn::And(magnitude, hn::Set(d, 0x7c00u << 13));
  const auto normal = hn::Add(magnitude, hn::Set(d, (127u - 15u) << 23));
  // A subnormal is the smallest normal plus the mantissa, minus the smallest normal. The
  // subtraction is exact, and it normalises the result.
  const auto smallest = hn::Set(d, 113u << 23);
  const auto tiny = hn::BitCast(d, hn::Sub(hn::BitCast(Floats(), hn::Add(magnitude, smallest)),
                                           hn::BitCast(Floats(), smallest)));
  const auto infinite =
      hn::Or(hn::Or(magnitude, hn::Set(d, 0x7f800000u)),
             hn::IfThenElseZero(hn::Gt(magnitude, exponent), hn::Set(d, 0x00400000u)));
  auto result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(d)), tiny, normal);
  result = hn::IfThenElse(hn::Eq(exponent, hn::Set(d, 0x7c00u << 13)), infinite, result);
  return hn::BitCast(Floats(), hn::Or(result, sign));
#endif
}

HWY_INLINE hn::Vec<HalfBits> float_to_fp16(hn::Vec<Floats> value) {
#if FSCCL_HARDWARE_FP16
  return hn::BitCast(HalfBits(), hn::DemoteTo(hn::Rebind<hwy::float16_t, Floats>(), value));
#else
  const FloatBits d;
  const auto bits = hn::BitCast(d, value);
  const auto sign = hn::And(bits, hn::Set(d, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);
  // For a subnormal result, the addition of 0.5 leaves the mantissa in the low bits, and rounds it.
  const auto half = hn::Set(d, 0x3f000000u);
  const auto tiny = hn::Sub(
      hn::BitCast(d, hn::Add(hn::BitCast(Floats(), magnitude), hn::BitCast(Floats(), half))), half);
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 1u));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, hn::Set(d, 0xc8000fffu)), odd));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(d, 0x3ffu));
  const auto nan = hn::Or(payload, hn::Set(d, 0x7e00u));
  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0x38800000u)), tiny, normal);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x477fffffu)), hn::Set(d, 0x7c00u), result);
  result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(d, 0x7f800000u)), nan, result);
  return hn::TruncateTo(HalfBits(), hn::Or(result, hn::ShiftRight<16>(sign)));
#endif
}

// Returns the bf16 of each lane in the lane's upper 16 bits, rounded to nearest even. A NaN becomes
// a quiet NaN. kPlainNan promises that every NaN is the plain quiet one, which rounding does not
// change, so that no lane has to be checked.
template <bool kPlainNan>
HWY_INLINE hn::Vec<FloatBits> float_to_bf16_high(hn::Vec<Floats> value) {
  const FloatBits d;
  const auto bits = hn::BitCast(d, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d, 0x7fffu)));
  if constexpr (kPlainNan) return rounded;
  const auto quiet = hn::Or(bits, hn::Set(d, 0x00400000u));
  return hn::IfThenElse(hn::RebindMask(d, hn::IsNaN(value)), quiet, rounded);
}

// ---- Loads of 16 elements of any alignment, widened to the accumulator's type.

HWY_INLINE void load(const float* from, Group<float>& g) {
  for (size_t k = 0; k < kVectors<float>; ++k)
    g.v[k] = hn::LoadU(Floats(), from + k * kLanes<float>);
}
HWY_INLINE void load(const double* from, Group<double>& g) {
  for (size_t k = 0; k < kVectors<double>; ++k)
    g.v[k] = hn::LoadU(Doubles(), from + k * kLanes<double>);
}
HWY_INLINE void load(const Bf16* from, Group<float>& g) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
  for (size_t k = 0; k < kVectors<float>; ++k) {
    const auto wide = hn::PromoteTo(FloatBits(), hn::LoadU(HalfBits(), bits + k * kLanes<float>));
    g.v[k] = hn::BitCast(Floats(), hn::ShiftLeft<16>(wide));
  }
}
HWY_INLINE void load(const Fp16* from, Group<float>& g) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(from);
  for (size_t k = 0; k < kVectors<float>; ++k)
    g.v[k] = fp16_to_float(hn::LoadU(HalfBits(), bits + k * kLanes<float>));
}

// ---- Stores of 16 elements, rounded to nearest even. With kStream, `to` must be aligned to the
// size of the group. kPlainNan is that of float_to_bf16_high().

template <bool kStream, class D, class V>
HWY_INLINE void put(V v, D d, hn::TFromD<D>* to) {
  if constexpr (kStream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}
template <bool kStream, bool kPlainNan = false>
HWY_INLINE void store(const Group<float>& g, float* to) {
  for (size_t k = 0; k < kVectors<float>; ++k)
    put<kStream>(g.v[k], Floats(), to + k * kLanes<float>);
}
template <bool kStream, bool kPlainNan = false>
HWY_INLINE void store(const Group<double>& g, double* to) {
  for (size_t k = 0; k < kVectors<double>; ++k)
    put<kStream>(g.v[k], Doubles(), to + k * kLanes<double>);
}
// Two vectors of floats make one vector of 16-bit results if the group has several vectors.
template <bool kStream, bool kPlainNan = false, class G>
HWY_INLINE void store(const G& g, Bf16* to) {
  uint16_t* out = reinterpret_cast<uint16_t*>(to);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(g.v) > sizeof(g.v[0])) {
    const hn::Repartition<uint16_t, typename G::D> d;
    for (size_t k = 0; k < kVectors<float>; k += 2) {
      const auto low = hn::BitCast(d, float_to_bf16_high<kPlainNan>(g.v[k]));
      const auto high = hn::BitCast(d, float_to_bf16_high<kPlainNan>(g.v[k + 1]));
      put<kStream>(hn::ConcatOdd(d, high, low), d, out + k * kLanes<float>);
    }
    return;
  }
#endif
  for (size_t k = 0; k < kVectors<float>; ++k) {
    const auto bits = hn::ShiftRight<16>(float_to_bf16_high<kPlainNan>(g.v[k]));
    put<kStream>(hn::TruncateTo(HalfBits(), bits), HalfBits(), out + k * kLanes<float>);
  }
}
template <bool kStream, bool kPlainNan = false, class G>
HWY_INLINE void store(const G& g, Fp16* to) {
  uint16_t* out = reinterpret_cast<uint16_t*>(to);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (sizeof(g.v) > sizeof(g.v[0])) {
    const hn::Repartition<uint16_t, typename G::D> d;
    for (size_t k = 0; k < kVectors<float>; k += 2) {
      put<kStream>(hn::Combine(d, float_to_fp16(g.v[k + 1]), float_to_fp16(g.v[k])), d,
                   out + k * kLanes<float>);
    }
    return;
  }
#endif
  for (size_t k = 0; k < kVectors<float>; ++k)
    put<kStream>(float_to_fp16(g.v[k]), HalfBits(), out + k * kLanes<float>);
}

// Rounds the elements of a group to values of T. Every NaN in the group must be the plain quiet
// one.
template <class T, class A>
HWY_INLINE void round_to(Group<A>& g) {
  if constexpr (std::is_same_v<T, Bf16>) {
    for (size_t k = 0; k < kVectors<float>; ++k) {
      const FloatBits d;
      g.v[k] =
          hn::BitCast(Floats(), hn::And(float_to_bf16_high<true>(g.v[k]), hn::Set(d, 0xffff0000u)));
    }
  } else if constexpr (std::is_same_v<T, Fp16>) {
    for (size_t k = 0; k < kVectors<float>; ++k) g.v[k] = fp16_to_float(float_to_fp16(g.v[k]));
  }
}

// Returns how many elements precede the first address from `to` on that is aligned to a group of T,
// at most `count`. The caller has made sure that there is such an address (can_stream()).
template <class T>
HWY_INLINE size_t elements_to_alignment(const void* to, size_t count) {
  constexpr size_t kBytes = kGroup * sizeof(T);
  const size_t past = reinterpret_cast<uintptr_t>(to) % kBytes;
  const size_t elements = (kBytes - past) % kBytes / sizeof(T);
  return elements < count ? elements : count;
}
template <class T>
HWY_INLINE bool can_stream(const void* to) {
  return reinterpret_cast<uintptr_t>(to) % sizeof(T) == 0;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();
#endif  // toggle
