// A block of elements in fp32, and what each kind of block codec (blocks.h) makes of it: the scale,
// the codes, and the decoded elements. This file is included once per instruction set, so its
// include guard toggles.
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(FSCCL_CODEC_BLOCK_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef FSCCL_CODEC_BLOCK_CODES_INL_H_
#undef FSCCL_CODEC_BLOCK_CODES_INL_H_
#else
#define FSCCL_CODEC_BLOCK_CODES_INL_H_
#endif

#include "codec/blocks.h"
#include "kernels/group_inl.h"

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

using Ints = hn::RebindToSigned<Floats>;
using Bytes = hn::Rebind<uint8_t, Floats>;
using SignedBytes = hn::Rebind<int8_t, Floats>;
using FloatVec = hn::Vec<Floats>;

constexpr size_t kLane = kLanes<float>;
constexpr size_t kRotated = 32;
constexpr uint32_t kLeastMagnitude = (127u - 100u) << 23, kMostMagnitude = (127u + 100u) << 23;
constexpr uint32_t kNan = 0x7fc00000u;
// A decoded value may be larger than the block's largest element, but T must be able to hold it.
template <class T>
constexpr uint32_t kMostOf = std::is_same_v<T, Fp16> ? (127u + 15u) << 23 : kMostMagnitude;
// Numbers of fp16 below 2^-14 have fewer bits. A decoded value would be rounded to a number whose
// distance is more than 1/2048 of the block's largest element, which the bound allows.
template <class T>
constexpr uint32_t kLeastOf = std::is_same_v<T, Fp16> ? (127u - 14u) << 23 : kLeastMagnitude;

// The elements of a block in fp32. Zeros pad the last group of 32.
struct alignas(64) Elements {
  float x[kMostBlock];
};
constexpr size_t padded(size_t count) { return (count + kRotated - 1) / kRotated * kRotated; }

HWY_INLINE float float_of(uint32_t bits) {
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}
HWY_INLINE uint32_t bits_of(float value) {
  uint32_t made;
  std::memcpy(&made, &value, sizeof made);
  return made;
}

template <class T>
HWY_INLINE void take(const T* from, size_t count, Elements& to) {
  Group<float> g;
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    load(from + i, g);
    store<false>(g, to.x + i);
  }
  if (i == padded(count)) return;
  T last[kRotated] = {};
  std::memcpy(last, from + i, (count - i) * sizeof(T));
  for (size_t k = 0; i < padded(count); i += kGroup, k += kGroup) {
    load(last + k, g);
    store<false>(g, to.x + i);
  }
}

template <class T>
HWY_INLINE void give(const Elements& from, size_t count, T* to) {
  Group<float> g;
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    load(from.x + i, g);
    store<false>(g, to + i);
  }
  if (i == count) return;
  T last[kGroup];
  load(from.x + i, g);
  store<false>(g, last);
  std::memcpy(to + i, last, (count - i) * sizeof(T));
}

// Returns the bits of the largest magnitude. Bits of magnitudes have the order of the values, and
// those of a NaN are above all others.
HWY_INLINE uint32_t largest_bits(const Elements& of, size_t count) {
  const FloatBits d;
  auto most = hn::Zero(d);
  for (size_t i = 0; i < padded(count); i += kLane)
    most = hn::Max(most,
                   hn::And(hn::BitCast(d, hn::Load(Floats(), of.x + i)), hn::Set(d, 0x7fffffffu)));
  alignas(64) uint32_t lanes[kLane];
  hn::Store(most, d, lanes);
  uint32_t found = 0;
  for (const uint32_t lane : lanes) found = lane > found ? lane : found;
  return found;
}

// ---- E4M3: codes of values up to 448, and the values of codes.

HWY_INLINE hn::Vec<FloatBits> e4m3_of(FloatVec value) {
  const FloatBits d;
  const auto bits = hn::BitCast(d, value);
  const auto sign = hn::And(bits, hn::Set(d, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);
  // Below 2^-6 steps are 2^-9: adding 2^14 leaves their number in the low bits, rounded.
  const auto large = hn::Set(d, (127u + 14u) << 23);
  const auto tiny = hn::Sub(
      hn::BitCast(d, hn::Add(hn::BitCast(Floats(), magnitude), hn::BitCast(Floats(), large))),
      large);
  const auto odd = hn::And(hn::ShiftRight<20>(magnitude), hn::Set(d, 1u));
  const auto rounded = hn::Add(magnitude, hn::Add(odd, hn::Set(d, 0x7ffffu)));
  const auto normal = hn::Sub(hn::ShiftRight<20>(rounded), hn::Set(d, (127u - 7u) << 3));
  const auto code = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, (127u - 6u) << 23)), tiny, normal);
  return hn::Or(code, hn::ShiftRight<24>(sign));
}

HWY_INLINE FloatVec of_e4m3(hn::Vec<FloatBits> code) {
  const FloatBits d;
  const auto sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(d, 0x80u)));
  const auto magnitude = hn::ShiftLeft<20>(hn::And(code, hn::Set(d, 0x7fu)));
  const auto normal = hn::Add(magnitude, hn::Set(d, (127u - 7u) << 23));
  const auto smallest = hn::Set(d, (127u - 6u) << 23);
  const auto tiny = hn::BitCast(d, hn::Sub(hn::BitCast(Floats(), hn::Add(magnitude, smallest)),
                                           hn::BitCast(Floats(), smallest)));
  const auto value = hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 8u << 20)), tiny, normal);
  return hn::BitCast(Floats(), hn::Or(value, sign));
}

// ---- Kinds: the scale of a block, and its codes. An element times `inverse` is encoded; what is
// decoded times the scale approximates the element.

struct Scale {
  float inverse = 0, value = 0;
};

// The scale in fp32 with which the largest element gets the code `most`.
HWY_INLINE Scale scale_of_largest(uint32_t largest, float most) {
  const float magnitude = float_of(largest);
  if (magnitude == 0) return {};
  return {most / magnitude, magnitude / most};
}

struct FloatScale {
  static constexpr size_t kBytes = 4;
  static HWY_INLINE void put(uint8_t* to, float value) { std::memcpy(to, &value, sizeof value); }
  static HWY_INLINE void put_nan(uint8_t* to) { std::memcpy(to, &kNan, sizeof kNan); }
  static HWY_INLINE float get(const uint8_t* from) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
};

struct Int8 : FloatScale {
  static constexpr bool kRotates = false;
  static HWY_INLINE Scale scale(uint32_t largest) { return scale_of_largest(largest, 127.0f); }
  static HWY_INLINE size_t encode(const Elements& from, size_t count, float inverse, uint8_t* to) {
    const auto by = hn::Set(Floats(), inverse);
    const size_t bytes = (count + kGroup - 1) / kGroup * kGroup;
    for (size_t i = 0; i < bytes; i += kLane) {
      const auto q = hn::NearestInt(hn::Mul(hn::Load(Floats(), from.x + i), by));
      hn::StoreU(hn::BitCast(Bytes(), hn::DemoteTo(SignedBytes(), q)), Bytes(), to + i);
    }
    return bytes;
  }
  static HWY_INLINE size_t decode(const uint8_t* from, size_t count, float scale, Elements& to) {
    const auto by = hn::Set(Floats(), scale);
    const size_t bytes = (count + kGroup - 1) / kGroup * kGroup;
    for (size_t i = 0; i < bytes; i += kLane) {
      const auto q = hn::BitCast(SignedBytes(), hn::LoadU(Bytes(), from + i));
      hn::Store(hn::Mul(hn::ConvertTo(Floats(), hn::PromoteTo(Ints(), q)), by), Floats(), to.x + i);
    }
    return bytes;
  }
};

struct Fp8Codes {
  static constexpr bool kRotates = false;
  static HWY_INLINE size_t encode(const Elements& from, size_t count, float inverse, uint8_t* to) {
    const auto by = hn::Set(Floats(), inverse);
    const size_t bytes = (count + kGroup - 1) / kGroup * kGroup;
    for (size_t i = 0; i < bytes; i += kLane) {
      const auto code = e4m3_of(hn::Mul(hn::Load(Floats(), from.x + i), by));
      hn::StoreU(hn::TruncateTo(Bytes(), code), Bytes(), to + i);
    }
    return bytes;
  }
  static HWY_INLINE size_t decode(const uint8_t* from, size_t count, float scale, Elements& to) {
    const auto by = hn::Set(Floats(), scale);
    const size_t bytes = (count + kGroup - 1) / kGroup * kGroup;
    for (size_t i = 0; i < bytes; i += kLane) {
      const auto code = hn::PromoteTo(FloatBits(), hn::LoadU(Bytes(), from + i));
      hn::Store(hn::Mul(of_e4m3(code), by), Floats(), to.x + i);
    }
    return bytes;
  }
};

struct Fp8 : FloatScale, Fp8Codes {
  static HWY_INLINE Scale scale(uint32_t largest) { return scale_of_largest(largest, 448.0f); }
};

struct MxFp8 : Fp8Codes {
  static constexpr size_t kBytes = 1;
  static HWY_INLINE Scale scale(uint32_t largest) {
    if (largest == 0) return {1, 1};
    // 448 is 1.75 times 2^8.
    const uint32_t power = (largest >> 23) - 8 + ((largest & 0x7fffffu) > 0x600000u ? 1 : 0);
    return {float_of((254u - power) << 23), float_of(power << 23)};
  }
  static HWY_INLINE void put(uint8_t* to, float value) {
    *to = static_cast<uint8_t>(bits_of(value) >> 23);
  }
  static HWY_INLINE void put_nan(uint8_t* to) { *to = 255; }
  static HWY_INLINE float get(const uint8_t* from) {
    return float_of(*from == 255 ? kNan : uint32_t{*from} << 23);
  }
};

struct Int4 : FloatScale {
  static constexpr bool kRotates = true;
  static HWY_INLINE Scale scale(uint32_t largest) { return scale_of_largest(largest, 7.0f); }
  static HWY_INLINE size_t encode(const Elements& from, size_t count, float inverse, uint8_t* to) {
    const auto by = hn::Set(Floats(), inverse);
    const auto bias = hn::Set(Ints(), 8);
    const auto code = [&](size_t at) {
      const auto q = hn::NearestInt(hn::Mul(hn::Load(Floats(), from.x + at), by));
      return hn::BitCast(FloatBits(), hn::Add(q, bias));
    };
    uint8_t* const begin = to;
    for (size_t i = 0; i < padded(count); i += kRotated, to += kGroup)
      for (size_t k = 0; k < kGroup; k += kLane) {
        const auto both = hn::Or(code(i + k), hn::ShiftLeft<4>(code(i + kGroup + k)));
        hn::StoreU(hn::TruncateTo(Bytes(), both), Bytes(), to + k);
      }
    return static_cast<size_t>(to - begin);
  }
  static HWY_INLINE size_t decode(const uint8_t* from, size_t count, float scale, Elements& to) {
    const auto by = hn::Set(Floats(), scale);
    const auto bias = hn::Set(Ints(), 8);
    const auto value = [&](hn::Vec<FloatBits> code) {
      return hn::Mul(hn::ConvertTo(Floats(), hn::Sub(hn::BitCast(Ints(), code), bias)), by);
    };
    const uint8_t* const begin = from;
    for (size_t i = 0; i < padded(count); i += kRotated, from += kGroup)
      for (size_t k = 0; k < kGroup; k += kLane) {
        const auto both = hn::PromoteTo(FloatBits(), hn::LoadU(Bytes(), from + k));
        hn::Store(value(hn::And(both, hn::Set(FloatBits(), 15u))), Floats(), to.x + i + k);
        hn::Store(value(hn::ShiftRight<4>(both)), Floats(), to.x + i + kGroup + k);
      }
    return static_cast<size_t>(from - begin);
  }
};

struct Bfloat16 {
  static constexpr bool kRotates = false;
  static constexpr size_t kBytes = 0;
  static HWY_INLINE Scale scale(uint32_t) { return {1, 1}; }
  static HWY_INLINE void put(uint8_t*, float) {}
  static HWY_INLINE void put_nan(uint8_t*) {}
  static HWY_INLINE float get(const uint8_t*) { return 1; }
  static HWY_INLINE size_t encode(const Elements& from, size_t count, float, uint8_t* to) {
    Group<float> g;
    Bf16 words[kGroup];
    size_t i = 0;
    for (; i < count; i += kGroup) {
      load(from.x + i, g);
      store<false>(g, words);
      std::memcpy(to + 2 * i, words, sizeof words);
    }
    return 2 * i;
  }
  static HWY_INLINE size_t decode(const uint8_t* from, size_t count, float, Elements& to) {
    Group<float> g;
    Bf16 words[kGroup];
    size_t i = 0;
    for (; i < count; i += kGroup) {
      std::memcpy(words, from + 2 * i, sizeof words);
      load(words, g);
      store<false>(g, to.x + i);
    }
    return 2 * i;
  }
};

// The functions of a program. The byte in the place of a scale says whether the block is coded,
// holds zeros, or has no codes because it goes exactly or is not finite. The functions see only
// coded blocks: for the others `inverse` is 0, and the scale is 0 or NaN. After an overrun the
// functions are not called again.
struct Custom {
  static constexpr bool kRotates = false;
  static constexpr size_t kBytes = 1;
  const CustomCodec& codec;
  Overrun& overrun;

  static Scale scale(uint32_t largest) { return largest ? Scale{1, 1} : Scale{}; }
  static void put(uint8_t* to, float value) { *to = value == 0; }
  static void put_nan(uint8_t* to) { *to = 255; }
  static float get(const uint8_t* from) {
    return *from > 1 ? float_of(kNan) : static_cast<float>(1 - *from);
  }
  size_t encode(const Elements& from, size_t count, float inverse, uint8_t* to) const {
    if (inverse != 0 && !overrun)
      overrun = codec.encode(from.x, count, to);
    else
      std::memset(to, 0, codec.bytes(count));
    return codec.bytes(count);
  }
  size_t decode(const uint8_t* from, size_t count, float scale, Elements& to) const {
    std::fill_n(to.x, padded(count), scale == scale ? 0 : scale);
    if (scale == 1 && !overrun) overrun = codec.decode(from, count, to.x);
    return codec.bytes(count);
  }
};

// ---- The rotation multiplies each 32 elements by the Hadamard matrix, all elements of which are 1
// or -1. Applied twice, it multiplies by 32.

// Sums and differences of the lanes whose numbers differ by kStride. Each lane of `partner` holds
// the value that the same lane of `v` is combined with.
template <uint32_t kStride>
HWY_INLINE FloatVec crossed(FloatVec v, FloatVec partner) {
  const FloatBits d;
  const auto second = hn::Ne(hn::And(hn::Iota(d, 0), hn::Set(d, kStride)), hn::Zero(d));
  const auto sign = hn::IfThenElseZero(second, hn::Set(d, 0x80000000u));
  return hn::Add(partner, hn::BitCast(Floats(), hn::Xor(hn::BitCast(d, v), sign)));
}

HWY_INLINE void rotate(Elements& of, size_t count) {
  for (size_t at = 0; at < padded(count); at += kRotated) {
    float* const x = of.x + at;
    for (size_t stride = kRotated / 2; stride >= kLane; stride /= 2)
      for (size_t begin = 0; begin < kRotated; begin += 2 * stride)
        for (size_t i = begin; i < begin + stride; i += kLane) {
          const auto a = hn::Load(Floats(), x + i), b = hn::Load(Floats(), x + i + stride);
          hn::Store(hn::Add(a, b), Floats(), x + i);
          hn::Store(hn::Sub(a, b), Floats(), x + i + stride);
        }
#if HWY_TARGET != HWY_SCALAR  // its vectors have one lane
    for (size_t i = 0; i < kRotated; i += kLane) {
      auto v = hn::Load(Floats(), x + i);
      if constexpr (kLane == 16) v = crossed<8>(v, hn::ConcatLowerUpper(Floats(), v, v));
      if constexpr (kLane >= 8) v = crossed<4>(v, hn::SwapAdjacentBlocks(v));
      v = crossed<2>(v, hn::Shuffle1032(v));
      hn::Store(crossed<1>(v, hn::Shuffle2301(v)), Floats(), x + i);
    }
#endif
  }
}

HWY_INLINE void rotate_back(Elements& of, size_t count) {
  rotate(of, count);
  const auto by = hn::Set(Floats(), 1.0f / kRotated);
  for (size_t i = 0; i < padded(count); i += kLane)
    hn::Store(hn::Mul(hn::Load(Floats(), of.x + i), by), Floats(), of.x + i);
}

template <class Kind>
HWY_INLINE size_t decode_block(const Kind& kind, const uint8_t* codes, size_t count, float scale,
                               Elements& to) {
  const size_t bytes = kind.decode(codes, count, scale, to);
  if constexpr (Kind::kRotates) rotate_back(to, count);
  return bytes;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#endif
