#include "allocators/host/private_view.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "base/limits.h"

namespace fsccl {
namespace {

// Bits of an entry of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst of Linux).
constexpr uint64_t kPresent = uint64_t{1} << 63, kSwapped = uint64_t{1} << 62,
                   kOfFile = uint64_t{1} << 61;
constexpr size_t kEntries = 2048;  // read at once

bool written(uint64_t entry) { return (entry & (kPresent | kSwapped)) && !(entry & kOfFile); }

}  // namespace

Result<PrivateView> PrivateView::create(int fd, uint64_t offset, uint64_t bytes) {
  FSCCL_ASSIGN(FileView view, FileView::map(fd, offset, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE,
                                            "a private view"));
  return PrivateView(std::move(view),
                     make_fd([] { return ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC); }));
}

uint64_t PrivateView::drop_writes(uint64_t offset, uint64_t bytes) {
  const uint64_t page = page_bytes(),
                 end = std::min((offset + bytes + page - 1) / page * page, view_.bytes());
  uint64_t dropped = 0;
  auto drop = [&](uint64_t from, uint64_t to) {
    if (to <= from || madvise(base() + from, to - from, MADV_DONTNEED) != 0) return;
    dropped += to - from;
  };
  std::array<uint64_t, kEntries> entries;
  for (uint64_t at = offset / page * page; at < end;) {
    const size_t wanted = static_cast<size_t>(std::min<uint64_t>((end - at) / page, kEntries));
    const uint64_t place = (reinterpret_cast<uintptr_t>(base()) + at) / page * sizeof entries[0];
    const ssize_t got = pread(pagemap_.get(), entries.data(), wanted * sizeof entries[0],
                              static_cast<off_t>(place));
    if (got < static_cast<ssize_t>(wanted * sizeof entries[0])) {  // not known, so all is dropped
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
