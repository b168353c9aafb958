// The copies other than memcpy. copy_streaming (for slots) and copy_lines (in place of memcpy where
// memcpy would be slow, see slow_to_move() in dispatch.cpp) align the destination to a cache line
// and then write whole lines in order. copy_as does what its variant says (variants.h).
//
// copy_near and copy_far, the copies between cores, walk several pages side by side and copy a line
// of each in turn. The reason is that a core's prefetcher stops at the end of a page: a walk page
// after page would halt at the begin of each, whereas with several pages one is fetched during the
// halt of another. Two pages are best between near cores, four between far cores. A range of less
// than two pages, and the rest of a longer one, is copied line after line. Where no other core has
// touched the ranges, memcpy is faster.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/copy.cpp"
#include "hwy/foreach_target.h"  // must come before highway.h
// clang-format off
#include "hwy/highway.h"
#include "kernels/group_inl.h"
#include "kernels/kernel_table.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace fsccl {
namespace HWY_NAMESPACE {

HWY_INLINE void copy_line(uint8_t* HWY_RESTRICT to, const uint8_t* HWY_RESTRICT from) {
  const hn::CappedTag<uint8_t, kLineBytes> d;
  for (size_t k = 0; k < kLineBytes; k += hn::MaxLanes(d))
    hn::StoreU(hn::LoadU(d, from + k), d, to + k);
}

HWY_INLINE void stream_line(uint8_t* to, const uint8_t* from) {
  const hn::CappedTag<uint8_t, kLineBytes> d;
  for (size_t k = 0; k < kLineBytes; k += hn::MaxLanes(d))
    hn::Stream(hn::LoadU(d, from + k), d, to + k);
}

template <Variant::Store kStore>
HWY_INLINE void put_line(uint8_t* to, const uint8_t* from, size_t ahead) {
  if (ahead) hwy::Prefetch(from + ahead);
  if constexpr (kStore == Variant::Store::nontemporal) {
    stream_line(to, from);
  } else {
    copy_line(to, from);
    leave_line<kStore>(to);
  }
}

// Copies the bytes before the first whole line of the destination, then the whole lines with
// `lines(to, from, at, bytes)`, and then the rest. `lines` begins at offset `at` and returns the
// offset where it ended, which is less than a line before `bytes`.
template <class Lines>
HWY_INLINE void copy_aligned(void* dst, const void* src, size_t bytes, const Lines& lines) {
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(dst) % kLineBytes) % kLineBytes;
  if (bytes < head + kLineBytes) {
    std::memcpy(dst, src, bytes);
    return;
  }
  copy_small<kLineBytes / 2, 1>(to, from, head);
  const size_t i = lines(to, from, head, bytes);
  copy_small<kLineBytes / 2, 1>(to + i, from + i, bytes - i);
}

template <void (*copy_one)(uint8_t*, const uint8_t*)>
HWY_INLINE void copy_in_order(void* dst, const void* src, size_t bytes) {
  copy_aligned(dst, src, bytes, [](uint8_t* to, const uint8_t* from, size_t i, size_t end) {
    for (; i + kLineBytes <= end; i += kLineBytes) copy_one(to + i, from + i);
    return i;
  });
}

void copy_lines_here(void* dst, const void* src, size_t bytes) {
  copy_in_order<copy_line>(dst, src, bytes);
}

void copy_streaming_here(void* dst, const void* src, size_t bytes) {
  copy_in_order<stream_line>(dst, src, bytes);
}

template <Variant::Store kStore>
void copy_stored(void* dst, const void* src, size_t bytes, Variant variant) {
  const size_t pages = variant.pages, ahead = variant.ahead, block = pages * kPageBytes;
  copy_aligned(dst, src, bytes, [=](uint8_t* to, const uint8_t* from, size_t i, size_t end) {
    for (; pages > 1 && i + block <= end; i += block)
      for (size_t line = i; line < i + kPageBytes; line += kLineBytes)
        for (size_t page = 0; page < block; page += kPageBytes)
          put_line<kStore>(to + line + page, from + line + page, ahead);
    for (; i + kLineBytes <= end; i += kLineBytes) put_line<kStore>(to + i, from + i, ahead);
    return i;
  });
}

void copy_as_here(void* dst, const void* src, size_t bytes, Variant variant) {
  switch (variant.store) {
    case Variant::Store::nontemporal:
      return copy_stored<Variant::Store::nontemporal>(dst, src, bytes, variant);
    case Variant::Store::demote:
      return copy_stored<Variant::Store::demote>(dst, src, bytes, variant);
    case Variant::Store::write_back:
      return copy_stored<Variant::Store::write_back>(dst, src, bytes, variant);
    default:
      return copy_stored<Variant::Store::plain>(dst, src, bytes, variant);
  }
}

// Copies the next `pages` pages, a line of each in turn.
template <size_t pages>
HWY_INLINE void copy_side_by_side(uint8_t* HWY_RESTRICT to, const uint8_t* HWY_RESTRICT from) {
  for (size_t line = 0; line < kPageBytes; line += kLineBytes)
    for (size_t page = 0; page < pages; page++)
      copy_line(to + page * kPageBytes + line, from + page * kPageBytes + line);
}

template <size_t pages>
void copy_between_cores_here(void* dst, const void* src, size_t bytes) {
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  size_t done = 0;
  for (; done + pages * kPageBytes <= bytes; done += pages * kPageBytes)
    copy_side_by_side<pages>(to + done, from + done);
  for (; done + 2 * kPageBytes <= bytes; done += 2 * kPageBytes)
    copy_side_by_side<2>(to + done, from + done);
  for (; done + kLineBytes <= bytes; done += kLineBytes) copy_line(to + done, from + done);
  copy_small<kLineBytes / 2, 1>(to + done, from + done, bytes - done);
}

void install_copy_here(KernelTable& table) {
  table.copy_lines = copy_lines_here;
  table.copy_streaming = copy_streaming_here;
  table.copy_as = copy_as_here;
  table.copy_near = copy_between_cores_here<2>;
  table.copy_far = copy_between_cores_here<4>;
}

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
FSCCL_INSTALL(install_copy)
}  // namespace fsccl
#endif
