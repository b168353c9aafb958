// Casts between the floating-point types load, convert and store groups of 16 elements. Every
// result is rounded once. The variant says how a cast stores and fetches (variants.h).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include <algorithm>
#include "hwy/highway.h"
#include "kernels/group_inl.h"
#include "kernels/kernel_table.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

// Converts fp64 to fp32 towards zero and sets the last bit if the result is inexact, so that a
// second rounding to 16 bits gives what a single rounding would.
HWY_INLINE float round_to_odd(double value) {
  float result = static_cast<float>(value);
  uint32_t bits;
  std::memcpy(&bits, &result, sizeof bits);
  const double back = static_cast<double>(result);
  const bool away = (value >= 0 && back > value) || (value < 0 && back < value);
  bits = (bits - (away ? 1u : 0u)) | (back != value ? 1u : 0u);
  std::memcpy(&result, &bits, sizeof bits);
  return result;
}

template <class To, class From>
HWY_INLINE void load_for(const From* from, Group<float>& g) {
  if constexpr (std::is_same_v<From, double>) {
    float values[kGroup];
    for (size_t k = 0; k < kGroup; ++k) {
      double value;
      std::memcpy(&value, reinterpret_cast<const char*>(from) + k * sizeof value, sizeof value);
      values[k] = std::is_same_v<To, float> ? static_cast<float>(value) : round_to_odd(value);
    }
    load(values, g);
  } else {
    load(from, g);
  }
}

template <bool kStream, class To>
HWY_INLINE void store_as(const Group<float>& g, To* to) {
  if constexpr (std::is_same_v<To, double>) {
    float values[kGroup];
    double wide[kGroup];
    store<false>(g, values);
    for (size_t k = 0; k < kGroup; ++k) wide[k] = static_cast<double>(values[k]);
    Group<double> out;
    load(wide, out);
    store<kStream>(out, to);
  } else {
    store<kStream>(g, to);
  }
}

template <bool kStream, class To, class From>
HWY_INLINE void cast_group(To* to, const From* from) {
  Group<float> g;
  load_for<To>(from, g);
  store_as<kStream>(g, to);
}

// Casts fewer than 16 elements, through a padded group.
template <class To, class From>
HWY_INLINE void cast_few(To* to, const From* from, size_t count) {
  From in[kGroup] = {};
  To out[kGroup];
  copy_few(in, from, count);
  cast_group<false>(out, in);
  copy_few(to, out, count);
}

// The elements of one line of the destination, at least a group.
template <class To>
inline constexpr size_t kLine = std::max(kGroup, kLineBytes / sizeof(To));

template <bool kStream, class To, class From>
HWY_INLINE void cast_line(To* to, const From* from, size_t ahead) {
  constexpr size_t kSourceBytes = kLine<To> * sizeof(From);
  if (ahead)
    for (size_t at = 0; at < kSourceBytes; at += kLineBytes)
      hwy::Prefetch(reinterpret_cast<const char*>(from) + ahead + at);
  for (size_t i = 0; i < kLine<To>; i += kGroup) cast_group<kStream>(to + i, from + i);
}

// Casts whole lines. If the variant has several pages, they are walked side by side; a page is one
// of the wider of the two types. Returns how many elements are done.
template <bool kStream, class To, class From>
HWY_INLINE size_t cast_lines(To* to, const From* from, size_t count, Variant variant) {
  constexpr size_t kPage = kPageBytes / std::max(sizeof(To), sizeof(From));
  const size_t ahead = variant.ahead, block = variant.pages * kPage;
  size_t i = 0;
  for (; variant.pages > 1 && i + block <= count; i += block)
    for (size_t line = i; line < i + kPage; line += kLine<To>)
      for (size_t page = 0; page < block; page += kPage)
        cast_line<kStream>(to + line + page, from + line + page, ahead);
  for (; i + kLine<To> <= count; i += kLine<To>) cast_line<kStream>(to + i, from + i, ahead);
  return i;
}

template <bool kStream, class To, class From>
HWY_INLINE void cast_main(To* to, const From* from, size_t count, Variant variant) {
  size_t i = cast_lines<kStream>(to, from, count, variant);
  for (; i + kGroup <= count; i += kGroup) cast_group<kStream>(to + i, from + i);
  if (i < count) cast_few(to + i, from + i, count - i);
}

template <class To, class From>
void cast_range(void* dst, const void* src, size_t count, Variant variant) {
  To* to = static_cast<To*>(dst);
  const From* from = static_cast<const From*>(src);
  if (variant.store != Variant::Store::nontemporal || !can_stream<To>(dst))
    return cast_main<false>(to, from, count, variant);
  const size_t head = elements_to_alignment<To>(dst, count);
  if (head > 0) cast_few(to, from, head);
  cast_main<true>(to + head, from + head, count - head, variant);
  hwy::FlushStream();
}

void install_cast_here(KernelTable& table) {
  constexpr int kFp16 = 0, kBf16 = 1, kFp32 = 2, kFp64 = 3;
  table.cast[kFp16][kBf16] = cast_range<Fp16, Bf16>;
  table.cast[kFp16][kFp32] = cast_range<Fp16, float>;
  table.cast[kFp16][kFp64] = cast_range<Fp16, double>;
  table.cast[kBf16][kFp16] = cast_range<Bf16, Fp16>;
  table.cast[kBf16][kFp32] = cast_range<Bf16, float>;
  table.cast[kBf16][kFp64] = cast_range<Bf16, double>;
  table.cast[kFp32][kFp16] = cast_range<float, Fp16>;
  table.cast[kFp32][kBf16] = cast_range<float, Bf16>;
  table.cast[kFp32][kFp64] = cast_range<float, double>;
  table.cast[kFp64][kFp16] = cast_range<double, Fp16>;
  table.cast[kFp64][kBf16] = cast_range<double, Bf16>;
  table.cast[kFp64][kFp32] = cast_range<double, float>;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_INSTALL(install_cast)
}  // namespace fsccl
#endif
