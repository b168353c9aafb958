#include "allocators/host/guarded_view.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/limits.h"

namespace fsccl {

bool set_access(const void* begin, uint64_t bytes, Access access) {
  const uint64_t mask = page_bytes() - 1, from = reinterpret_cast<uint64_t>(begin) & ~mask;
  const uint64_t to = (reinterpret_cast<uint64_t>(begin) + bytes + mask) & ~mask;
  const int protection = access == Access::none ? PROT_NONE : access == Access::read ? PROT_READ : PROT_READ | PROT_WRITE;
  return mprotect(reinterpret_cast<void*>(from), to - from, protection) == 0;
}

Result<GuardedView> GuardedView::create(int fd, uint64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (mapped == MAP_FAILED) {
    if (errno != ENOMEM) return fail_errno(errno, fmt::format("host arena: mmap of {} bytes for debug mode", bytes));
    return fail(FSCCL_ERR_LIMIT,
                "host arena: no address space for a second view of {} bytes, which debug mode has; raise RLIMIT_AS (ulimit -v "
                "unlimited) or lower FSCCL_POOL_REGION_BYTES",
                bytes);
  }
  GuardedView view;
  view.base_ = static_cast<std::byte*>(mapped);
  view.bytes_ = bytes;
  view.owner_ = getpid();
  if (madvise(mapped, bytes, MADV_DONTFORK) != 0) return fail_errno(errno, "host arena: madvise(MADV_DONTFORK)");
  madvise(mapped, bytes, MADV_DONTDUMP);  // only keeps core files small: may fail
  return view;
}

GuardedView::GuardedView(GuardedView&& other) noexcept { *this = std::move(other); }

GuardedView& GuardedView::operator=(GuardedView&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(owner_, other.owner_);
  return *this;
}

GuardedView::~GuardedView() {
  if (base_ && owner_ == getpid()) munmap(base_, bytes_);
}

}  // namespace fsccl
