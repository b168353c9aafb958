#include "allocators/host/private_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/limits.h"

namespace fsccl {
namespace {

// An entry of /proc/self/pagemap, Documentation/admin-guide/mm/pagemap.rst of Linux.
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62, kOfFile = uint64_t{1} << 61;
constexpr size_t kEntries = 2048;  // read at once

bool written(uint64_t entry) { return (entry & (kPresent | kSwapped)) && !(entry & kOfFile); }

}  // namespace

Result<PrivateView> PrivateView::create(int fd, uint64_t offset, uint64_t bytes) {
  void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) {
    if (errno != ENOMEM) return fail_errno(errno, fmt::format("host arena: private mmap of {} bytes", bytes));
    return fail(FSCCL_ERR_LIMIT,
                "host arena: no address space for a private view of {} bytes; raise RLIMIT_AS (ulimit -v unlimited) or lower "
                "FSCCL_POOL_REGION_BYTES",
                bytes);
  }
  PrivateView view;
  view.base_ = static_cast<std::byte*>(mapped);
  view.bytes_ = bytes;
  view.owner_ = getpid();
  view.pagemap_.reset(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
  if (madvise(mapped, bytes, MADV_DONTFORK) != 0) return fail_errno(errno, "host arena: madvise(MADV_DONTFORK)");
  madvise(mapped, bytes, MADV_DONTDUMP);  // only keeps core files small: may fail
  return view;
}

PrivateView::PrivateView(PrivateView&& other) noexcept { *this = std::move(other); }

PrivateView& PrivateView::operator=(PrivateView&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  std::swap(pagemap_, other.pagemap_);
  std::swap(owner_, other.owner_);
  return *this;
}

PrivateView::~PrivateView() {
  if (base_ && owner_ == getpid()) munmap(base_, bytes_);
}

uint64_t PrivateView::drop_writes(uint64_t offset, uint64_t bytes) {
  const uint64_t page = page_bytes(), end = std::min((offset + bytes + page - 1) / page * page, bytes_);
  uint64_t dropped = 0;
  auto drop = [&](uint64_t from, uint64_t to) {
    if (to <= from || madvise(base_ + from, to - from, MADV_DONTNEED) != 0) return;
    dropped += to - from;
  };
  std::array<uint64_t, kEntries> entries;
  for (uint64_t at = offset / page * page; at < end;) {
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>((end - at) / page, kEntries));
    const uint64_t place = (reinterpret_cast<uintptr_t>(base_) + at) / page * sizeof entries[0];
    const ssize_t got = pread(pagemap_.get(), entries.data(), wanted * sizeof entries[0], static_cast<off_t>(place));
    if (got < static_cast<ssize_t>(wanted * sizeof entries[0])) {  // unknown: all of it, then
      drop(at, end);
      break;
    }
    for (size_t i = 0; i < wanted; i++) {
      size_t next = i;
      while (next < wanted && written(entries[next])) next++;
      drop(at + i * page, at + next * page);
      i = next;
    }
    at += wanted * page;
  }
  return dropped;
}

}  // namespace fsccl
