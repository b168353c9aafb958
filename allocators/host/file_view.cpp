#include "allocators/host/file_view.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace fsccl {

Result<FileView> FileView::map(int fd, uint64_t offset, uint64_t bytes, int protection, int sharing,
                               const char* name) {
  void* mapped =
      mmap(nullptr, bytes, protection, sharing | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    if (errno != ENOMEM)
      return fail_errno(errno, fmt::format("host arena: mmap of {} bytes for {}", bytes, name));
    return fail(FSCCL_ERR_LIMIT,
                "host arena: no address space for {} of {} bytes; raise RLIMIT_AS (ulimit -v "
                "unlimited) or lower "
                "FSCCL_POOL_REGION_BYTES",
                name, bytes);
  }
  FileView view;
  view.base_ = static_cast<std::byte*>(mapped);
  view.bytes_ = bytes;
  view.owner_ = getpid();
  if (madvise(mapped, bytes, MADV_DONTFORK) != 0)
    return fail_errno(errno, "host arena: madvise(MADV_DONTFORK)");
  madvise(mapped, bytes, MADV_DONTDUMP);  // may fail: this only keeps core files small
  return view;
}

FileView::FileView(FileView&& other) noexcept { *this = std::move(other); }

FileView& FileView::operator=(FileView&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(owner_, other.owner_);
  return *this;
}

FileView::~FileView() {
  if (base_ && owner_ == getpid()) munmap(base_, bytes_);
}

}  // namespace fsccl
