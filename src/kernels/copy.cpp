// The streaming copy. (The cached copy is memcpy.) It aligns the destination to a cache line, then writes whole lines in order,
// with nothing else: neither software prefetch nor several pages side by side measured better.
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

inline constexpr size_t kLineBytes = 64;

HWY_INLINE void copy_line(uint8_t* to, const uint8_t* from) {
  const hn::CappedTag<uint8_t, kLineBytes> d;
  for (size_t k = 0; k < kLineBytes; k += hn::MaxLanes(d)) hn::Stream(hn::LoadU(d, from + k), d, to + k);
}

void copy_streaming_here(void* dst, const void* src, size_t bytes) {
  uint8_t* to = static_cast<uint8_t*>(dst);
  const uint8_t* from = static_cast<const uint8_t*>(src);
  const size_t head = (kLineBytes - reinterpret_cast<uintptr_t>(dst) % kLineBytes) % kLineBytes;
  if (bytes < head + kLineBytes) {
    std::memcpy(dst, src, bytes);
    return;
  }
  copy_small<kLineBytes / 2, 1>(to, from, head);
  size_t i = head;
  for (; i + kLineBytes <= bytes; i += kLineBytes) copy_line(to + i, from + i);
  copy_small<kLineBytes / 2, 1>(to + i, from + i, bytes - i);
  hwy::FlushStream();
}

void install_copy_here(KernelTable& table) { table.copy_streaming = copy_streaming_here; }

}  // namespace HWY_NAMESPACE
}  // namespace fsccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fsccl {
HWY_EXPORT(install_copy_here);
void install_copy(KernelTable& table) { HWY_DYNAMIC_DISPATCH(install_copy_here)(table); }
}  // namespace fsccl
#endif
