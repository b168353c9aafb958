#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "codec/block_kernels.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "codec/block_codes_inl.h"
#include "codec/block_kernels.h"
#include "kernels/float_mode.h"
#include "kernels/targets.h"
// clang-format on
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

// The largest |x - x'| divided by the largest |x|, where x' is the block as it is stored. It is
// infinite if a custom codec turns an element into NaN.
template <class T, class Kind>
HWY_INLINE float error_of(const Kind& kind, const Elements& block, const uint8_t* codes,
                          size_t count, float scale, float largest) {
  Elements back;
  T stored[kMostBlock];
  decode_block(kind, codes, count, scale, back);
  give(back, count, stored);
  take(stored, count, back);
  for (size_t i = 0; i < padded(count); i += kLane)
    hn::Store(hn::Sub(hn::Load(Floats(), block.x + i), hn::Load(Floats(), back.x + i)), Floats(),
              back.x + i);
  const float most = float_of(largest_bits(back, count));
  if (most == 0) return 0;
  const float error = most / largest;
  return error == error ? error : std::numeric_limits<float>::infinity();
}

template <class T, class Kind>
void encode_blocks_as(const Kind& kind, const T* from, size_t count, uint32_t block,
                      BlockEncoding& work) {
  Elements x;
  uint8_t* codes = work.codes;
  uint8_t* scales = work.scales;
  uint64_t until_audit = work.every ? work.phase % work.every : ~uint64_t{0};
  const double most_error = work.most_error > 0 ? work.most_error : work.bound;
  for (size_t at = 0; at < count; at += block, scales += Kind::kBytes) {
    const size_t now = count - at < block ? count - at : block;
    take(from + at, now, x);
    const uint32_t largest = largest_bits(x, now);
    bool fits = largest == 0 || (largest >= kLeastOf<T> && largest <= kMostOf<T>);
    const Scale scale = fits ? Kind::scale(largest) : Scale{};
    const size_t bytes = kind.encode(x, now, fits ? scale.inverse : 0, codes);
    if (fits) {
      Kind::put(scales, scale.value);
      if ((work.most_error > 0 || until_audit == 0) && !work.overrun) {
        const float error = error_of<T>(kind, x, codes, now, scale.value, float_of(largest));
        work.audited++;
        work.beyond += error > work.bound;
        if (error > work.bound && error > work.worst) work.worst = error;
        fits = error <= most_error;
        if (fits && error > work.largest) work.largest = error;
      }
    }
    until_audit = until_audit == 0 ? work.every - 1 : until_audit - 1;
    if (!fits) {
      const size_t exact_bytes = now * sizeof(T);
      work.full = exact_bytes > work.room;
      if (work.full) return;
      std::memset(codes, 0, bytes);
      Kind::put_nan(scales);
      std::memcpy(work.exact_to, from + at, exact_bytes);
      work.exact_to += exact_bytes;
      work.room -= exact_bytes;
      work.exact++;
    }
    codes += bytes;
  }
}

template <class T, class Kind>
void encode_sums_as(const Kind& kind, const T* from, size_t count, uint32_t block,
                    BlockEncoding& work) {
  Elements x, rotated, back;
  uint8_t* codes = work.codes;
  uint8_t* scales = work.scales;
  uint64_t until_audit = work.every ? work.phase % work.every : ~uint64_t{0};
  for (size_t at = 0; at < count; at += block, scales += Kind::kBytes) {
    const size_t now = count - at < block ? count - at : block;
    take(from + at, now, x);
    float* const feedback = work.feedback ? work.feedback + at : nullptr;
    if (feedback) {
      take(feedback, now, back);
      for (size_t i = 0; i < padded(now); i += kLane)
        hn::Store(hn::Add(hn::Load(Floats(), x.x + i), hn::Load(Floats(), back.x + i)), Floats(),
                  x.x + i);
    }
    const Elements* coded = &x;
    if constexpr (Kind::kRotates) {
      std::memcpy(rotated.x, x.x, padded(now) * sizeof(float));
      rotate(rotated, now);
      coded = &rotated;
    }
    const uint32_t largest = largest_bits(*coded, now);
    const bool finite = largest <= kMostMagnitude;
    const bool nothing = !finite || largest < kLeastMagnitude;
    const Scale scale = Kind::scale(nothing ? 0 : largest);
    uint8_t* const own = codes;
    codes += kind.encode(*coded, now, scale.inverse, codes);
    if constexpr (std::is_same_v<Kind, Custom>) {
      // With feedback all blocks are measured, because what a block loses would stay there.
      if (!nothing && (feedback || until_audit == 0) && !work.overrun)
        work.worst = std::max(work.worst,
                              error_of<float>(kind, x, own, now, scale.value, float_of(largest)));
      until_audit = until_audit == 0 ? work.every - 1 : until_audit - 1;
    }
    if (finite) {
      Kind::put(scales, scale.value);
    } else if (Kind::kBytes) {
      Kind::put_nan(scales);
      std::memset(own, 0, static_cast<size_t>(codes - own));
    }
    if (!feedback || !finite) continue;
    decode_block(kind, own, now, scale.value, back);
    for (size_t i = 0; i < padded(now); i += kLane)
      hn::Store(hn::Sub(hn::Load(Floats(), x.x + i), hn::Load(Floats(), back.x + i)), Floats(),
                x.x + i);
    std::memcpy(feedback, x.x, now * sizeof(float));
  }
}

template <class T, class Kind>
void decode_blocks_as(const Kind& kind, T* to, size_t count, uint32_t block, BlockDecoding& work) {
  Elements x;
  const uint8_t* codes = work.codes;
  const uint8_t* scales = work.scales;
  for (size_t at = 0; at < count; at += block, scales += Kind::kBytes) {
    const size_t now = count - at < block ? count - at : block;
    const float scale = Kind::get(scales);
    codes += decode_block(kind, codes, now, scale, x);
    if (scale == scale) {
      give(x, now, to + at);
      continue;
    }
    const size_t exact_bytes = now * sizeof(T);
    work.exact++;
    if (exact_bytes > static_cast<size_t>(work.end - work.exact_from)) continue;
    std::memcpy(to + at, work.exact_from, exact_bytes);
    work.exact_from += exact_bytes;
  }
}

template <class Kind>
void add_sums_as(const Kind& kind, float* sums, size_t count, uint32_t block, bool adds,
                 BlockDecoding& work) {
  Elements x, before;
  const uint8_t* codes = work.codes;
  const uint8_t* scales = work.scales;
  for (size_t at = 0; at < count; at += block, scales += Kind::kBytes) {
    const size_t now = count - at < block ? count - at : block;
    codes += decode_block(kind, codes, now, Kind::get(scales), x);
    if (adds) {
      take(sums + at, now, before);
      for (size_t i = 0; i < padded(now); i += kLane)
        hn::Store(hn::Add(hn::Load(Floats(), before.x + i), hn::Load(Floats(), x.x + i)), Floats(),
                  x.x + i);
    }
    give(x, now, sums + at);
  }
}

// Calls act() with `elements` as a pointer to their type.
template <class Void, class Act>
HWY_INLINE void with_type(Void* elements, fsccl_dtype_t dtype, const Act& act) {
  constexpr bool kConst = std::is_const_v<Void>;
  if (dtype == FSCCL_BFLOAT16)
    act(static_cast<std::conditional_t<kConst, const Bf16, Bf16>*>(elements));
  else if (dtype == FSCCL_FLOAT16)
    act(static_cast<std::conditional_t<kConst, const Fp16, Fp16>*>(elements));
  else
    act(static_cast<std::conditional_t<kConst, const float, float>*>(elements));
}

void encode_here(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                 BlockEncoding& work) {
  with_type(from, dtype, [&](const auto* elements) {
    if (form.kind == BlockKind::int8)
      encode_blocks_as(Int8(), elements, count, form.block, work);
    else if (form.kind == BlockKind::fp8)
      encode_blocks_as(Fp8(), elements, count, form.block, work);
    else if (form.kind == BlockKind::mxfp8)
      encode_blocks_as(MxFp8(), elements, count, form.block, work);
    else
      encode_blocks_as(Custom{*form.custom, work.overrun}, elements, count, form.block, work);
  });
}

void decode_here(void* to, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                 BlockDecoding& work) {
  with_type(to, dtype, [&](auto* elements) {
    if (form.kind == BlockKind::int8)
      decode_blocks_as(Int8(), elements, count, form.block, work);
    else if (form.kind == BlockKind::fp8)
      decode_blocks_as(Fp8(), elements, count, form.block, work);
    else if (form.kind == BlockKind::mxfp8)
      decode_blocks_as(MxFp8(), elements, count, form.block, work);
    else
      decode_blocks_as(Custom{*form.custom, work.overrun}, elements, count, form.block, work);
  });
}

void encode_sums_here(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                      BlockEncoding& work) {
  with_type(from, dtype, [&](const auto* elements) {
    if (form.kind == BlockKind::int8)
      encode_sums_as(Int8(), elements, count, form.block, work);
    else if (form.kind == BlockKind::int4)
      encode_sums_as(Int4(), elements, count, form.block, work);
    else if (form.kind == BlockKind::bf16)
      encode_sums_as(Bfloat16(), elements, count, form.block, work);
    else
      encode_sums_as(Custom{*form.custom, work.overrun}, elements, count, form.block, work);
  });
}

void add_sums_here(float* sums, size_t count, const BlockForm& form, bool adds,
                   BlockDecoding& work) {
  if (form.kind == BlockKind::int8)
    add_sums_as(Int8(), sums, count, form.block, adds, work);
  else if (form.kind == BlockKind::int4)
    add_sums_as(Int4(), sums, count, form.block, adds, work);
  else if (form.kind == BlockKind::bf16)
    add_sums_as(Bfloat16(), sums, count, form.block, adds, work);
  else
    add_sums_as(Custom{*form.custom, work.overrun}, sums, count, form.block, adds, work);
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_COMPILED_FOR_TARGETS(encode_here)
FSCCL_COMPILED_FOR_TARGETS(decode_here)
FSCCL_COMPILED_FOR_TARGETS(encode_sums_here)
FSCCL_COMPILED_FOR_TARGETS(add_sums_here)

void encode_block_kernel(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                         BlockEncoding& work) {
  const DefaultFloatMode mode;
  encode_here_for(supported_targets())(from, dtype, count, form, work);
}

void decode_block_kernel(void* to, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                         BlockDecoding& work) {
  const DefaultFloatMode mode;
  decode_here_for(supported_targets())(to, dtype, count, form, work);
}

void encode_sum_kernel(const void* from, fsccl_dtype_t dtype, size_t count, const BlockForm& form,
                       BlockEncoding& work) {
  const DefaultFloatMode mode;
  encode_sums_here_for(supported_targets())(from, dtype, count, form, work);
}

void add_sum_kernel(float* sums, size_t count, const BlockForm& form, bool adds,
                    BlockDecoding& work) {
  const DefaultFloatMode mode;
  add_sums_here_for(supported_targets())(sums, count, form, adds, work);
}
}  // namespace fsccl
#endif
