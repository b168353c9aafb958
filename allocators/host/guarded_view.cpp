#include "allocators/host/guarded_view.h"

#include <sys/mman.h>

#include "base/limits.h"

namespace fsccl {

bool set_access(const void* begin, uint64_t bytes, Access access) {
  const uint64_t mask = page_bytes() - 1, from = reinterpret_cast<uint64_t>(begin) & ~mask;
  const uint64_t to = (reinterpret_cast<uint64_t>(begin) + bytes + mask) & ~mask;
  const int protection = access == Access::none   ? PROT_NONE
                         : access == Access::read ? PROT_READ
                                                  : PROT_READ | PROT_WRITE;
  return mprotect(reinterpret_cast<void*>(from), to - from, protection) == 0;
}

Result<GuardedView> GuardedView::create(int fd, uint64_t bytes) {
  FSCCL_ASSIGN(FileView view, FileView::map(fd, 0, bytes, PROT_NONE, MAP_SHARED,
                                            "the second view that debug mode has"));
  return GuardedView(std::move(view));
}

}  // namespace fsccl
