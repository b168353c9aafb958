#include "allocators/host/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>
#include <vector>

#include "allocators/host/available_memory.h"
#include "base/limits.h"
#include "base/reserve_file.h"
#include "base/write_file.h"

// The headers of some systems that this builds on are older than these flags. The kernels of such
// systems answer EINVAL, which the callers handle.
#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace fsccl {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;
constexpr uint64_t kCheckEveryBytes = uint64_t{16} << 20;  // between two checks of free memory
constexpr uint64_t kPopulateStepBytes = uint64_t{64} << 20;
// Larger arenas are left out of core files.
constexpr uint64_t kDumpLimitBytes = uint64_t{64} << 20;

// An arena is the memory of a pool or a single block of fsccl_allocator_host().
constexpr const char* kAskForLess =
    "ask for less: a smaller block, or a lower limit of the pool (FSCCL_POOL_LIMIT)";

bool round_up_to_page(uint64_t value, uint64_t* result) {
  const uint64_t mask = page_bytes() - 1;
  if (value > UINT64_MAX - mask) return false;
  *result = (value + mask) & ~mask;
  return true;
}

Status check_limit(rlim_t limit, uint64_t bytes, const char* name, const char* command) {
  if (limit == RLIM_INFINITY || bytes <= limit) return success();
  return fail(FSCCL_ERR_LIMIT,
              "host arena: needs {} bytes, the limit {} is {} bytes; raise it ({}) or {}", bytes,
              name, static_cast<uint64_t>(limit), command, kAskForLess);
}

Result<Fd> create_file(uint64_t bytes) {
  // The error of resize_file() would not say that asking for less helps as well.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0)
    FSCCL_TRY(check_limit(limit.rlim_cur, bytes, "RLIMIT_FSIZE", "ulimit -f unlimited"));
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  Fd fd = make_fd([] { return memfd_create("fsccl-arena", kFlags | MFD_NOEXEC_SEAL); });
  if (!fd.valid() && errno == EINVAL)
    fd = make_fd([] { return memfd_create("fsccl-arena", kFlags); });
  if (!fd.valid()) return fail_errno(errno, "host arena: memfd_create");
  if (const int error = resize_file(fd.get(), bytes))
    return fail_errno(error, fmt::format("host arena: ftruncate to {} bytes", bytes));
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0)
    return fail_errno(errno, "host arena: fcntl(F_ADD_SEALS)");
  return fd;
}

// Writes to each page without changing it, even if others write to it at the same time.
void touch(std::byte* begin, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += page_bytes()) {
    std::atomic_ref<unsigned char>(reinterpret_cast<unsigned char&>(begin[at]))
        .fetch_or(0, std::memory_order_relaxed);
  }
}

}  // namespace

Result<HostArena> HostArena::with_sizes(int ranks, uint64_t control_bytes, uint64_t region_bytes) {
  HostArena arena;
  arena.ranks_ = ranks;
  uint64_t regions = 0;
  const bool fits =
      ranks > 0 && round_up_to_page(control_bytes, &arena.control_bytes_) &&
      round_up_to_page(region_bytes, &arena.region_bytes_) &&
      !__builtin_mul_overflow(static_cast<uint64_t>(ranks), arena.region_bytes_, &regions) &&
      !__builtin_add_overflow(regions, arena.control_bytes_, &arena.total_bytes_) &&
      arena.total_bytes_ <= INT64_MAX - kHugePageBytes;
  if (!fits || arena.total_bytes_ == 0) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "host arena: {} ranks with {} bytes each and {} control bytes is not a size that "
                "can be mapped; {}",
                ranks, region_bytes, control_bytes, kAskForLess);
  }
  return arena;
}

Result<HostArena> HostArena::create(int ranks, uint64_t control_bytes, uint64_t region_bytes) {
  FSCCL_ASSIGN(HostArena arena, with_sizes(ranks, control_bytes, region_bytes));
  FSCCL_ASSIGN(arena.fd_, create_file(arena.total_bytes_));
  FSCCL_TRY(arena.map());
  uint64_t done = 0;
  FSCCL_TRY(check_available(arena.control_bytes_));
  FSCCL_TRY(arena.allocate(0, arena.control_bytes_, &done));
  return arena;
}

Result<HostArena> HostArena::open(Fd fd, int ranks, uint64_t control_bytes, uint64_t region_bytes) {
  FSCCL_ASSIGN(HostArena arena, with_sizes(ranks, control_bytes, region_bytes));
  struct stat state{};
  if (fstat(fd.get(), &state) != 0)
    return fail_errno(errno, "host arena: fstat of the descriptor received");
  if (!S_ISREG(state.st_mode) || static_cast<uint64_t>(state.st_size) != arena.total_bytes_) {
    return fail(FSCCL_ERR_PROTOCOL,
                "host arena: the descriptor received is not an arena of {} bytes (mode {:o}, {} "
                "bytes); do all ranks have the same "
                "pool limit?",
                arena.total_bytes_, state.st_mode, state.st_size);
  }
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return fail(FSCCL_ERR_PROTOCOL,
                "host arena: the descriptor received is not sealed against shrinking and growing "
                "(seals {})",
                seals);
  }
  arena.fd_ = std::move(fd);
  FSCCL_TRY(arena.map());
  return arena;
}

HostArena::HostArena(HostArena&& other) noexcept { *this = std::move(other); }

HostArena& HostArena::operator=(HostArena&& other) noexcept {
  if (this == &other) return *this;
  unmap();
  fd_ = std::move(other.fd_);
  base_ = std::exchange(other.base_, nullptr);
  control_bytes_ = other.control_bytes_;
  region_bytes_ = other.region_bytes_;
  total_bytes_ = std::exchange(other.total_bytes_, 0);
  ranks_ = std::exchange(other.ranks_, 0);
  file_offset_ = other.file_offset_;
  outside_ = other.outside_;
  huge_pages_ = other.huge_pages_;
  owner_ = other.owner_;
  reserved_ = std::exchange(other.reserved_, {});
  return *this;
}

HostArena::~HostArena() { unmap(); }

Status HostArena::map() {
  // This first mapping only reserves addresses, some more than are needed, so that the arena can
  // begin at a multiple of a huge page.
  const uint64_t wanted = total_bytes_ + kHugePageBytes;
  void* space =
      mmap(nullptr, wanted, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) {
    const int error = errno;
    rlimit limit{};
    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
      return fail(FSCCL_ERR_LIMIT,
                  "host arena: no address space for {} bytes, the limit RLIMIT_AS is {} bytes; "
                  "raise it (ulimit -v unlimited) or {}",
                  wanted, static_cast<uint64_t>(limit.rlim_cur), kAskForLess);
    }
    if (error == ENOMEM) {
      return fail(FSCCL_ERR_LIMIT, "host arena: no address space for {} bytes; {}", wanted,
                  kAskForLess);
    }
    return fail_errno(error, fmt::format("host arena: mmap of {} bytes of address space", wanted));
  }
  std::byte* const begin = static_cast<std::byte*>(space);
  const uint64_t skip =
      (kHugePageBytes - reinterpret_cast<uintptr_t>(space) % kHugePageBytes) % kHugePageBytes;
  void* mapped =
      mmap(begin + skip, total_bytes_, PROT_READ | PROT_WRITE,
           MAP_SHARED | MAP_NORESERVE | MAP_FIXED, fd_.get(), static_cast<off_t>(file_offset_));
  if (mapped == MAP_FAILED) {
    const int error = errno;
    munmap(space, wanted);
    return fail_errno(error, fmt::format("host arena: mmap of {} bytes", total_bytes_));
  }
  if (skip > 0) munmap(begin, skip);
  if (kHugePageBytes > skip) munmap(begin + skip + total_bytes_, kHugePageBytes - skip);
  base_ = static_cast<std::byte*>(mapped);
  owner_ = getpid();
  if (madvise(base_, total_bytes_, MADV_DONTFORK) != 0)
    return fail_errno(errno, "host arena: madvise(MADV_DONTFORK)");
  // This only keeps core files small, so it may fail.
  if (total_bytes_ > kDumpLimitBytes) madvise(base_, total_bytes_, MADV_DONTDUMP);
  return success();
}

void HostArena::unmap() {
  // A child of fork() does not have the mapping, and may have something else at these addresses.
  if (base_ && owner_ == getpid()) munmap(base_, total_bytes_);
  base_ = nullptr;
}

bool HostArena::locate(const void* pointer, int* rank, uint64_t* offset) const {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer),
                  begin = reinterpret_cast<uintptr_t>(base_) + control_bytes_;
  if (!base_ || address < begin || region_bytes_ == 0) return false;
  const uint64_t distance = address - begin;
  if (distance >= total_bytes_ - control_bytes_) return false;
  *rank = static_cast<int>(distance / region_bytes_);
  *offset = distance % region_bytes_;
  return true;
}

bool HostArena::whole_pages(int rank, uint64_t offset, uint64_t bytes, uint64_t* begin,
                            uint64_t* end) const {
  if (rank < 0 || rank >= ranks_ || offset > region_bytes_ || bytes > region_bytes_ - offset)
    return false;
  const uint64_t region_begin = control_bytes_ + static_cast<uint64_t>(rank) * region_bytes_;
  *begin = (region_begin + offset) & ~(page_bytes() - 1);
  return round_up_to_page(region_begin + offset + bytes, end);
}

Status HostArena::reserve(int rank, uint64_t offset, uint64_t bytes, bool populate) {
  uint64_t begin = 0, end = 0;
  if (!whole_pages(rank, offset, bytes, &begin, &end)) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "host arena: [{}, {} + {}) of rank {} is outside its region of {} bytes ({} ranks)",
                offset, offset, bytes, rank, region_bytes_, ranks_);
  }
  const std::vector<std::pair<uint64_t, uint64_t>> missing = reserved_.missing(begin, end);
  uint64_t wanted = 0;
  for (const auto& [from, to] : missing) wanted += to - from;
  if (wanted > 0 && !outside_) FSCCL_TRY(check_available(wanted));
  for (size_t i = 0; i < missing.size(); ++i) {
    uint64_t done = missing[i].first;
    Status status = allocate(missing[i].first, missing[i].second, &done);
    if (status.ok()) continue;
    for (size_t j = 0; j <= i; ++j) {
      const uint64_t to = j < i ? missing[j].second : done;
      if (to > missing[j].first) {
        fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(file_offset_ + missing[j].first),
                  static_cast<off_t>(to - missing[j].first));
      }
    }
    return status;
  }
  for (const auto& [from, to] : missing) reserved_.add(from, to);
  return populate ? this->populate(rank, offset, bytes) : success();
}

// Makes the memory of [begin, end) of the arena exist; *done becomes the end of what exists. The
// memory of a source exists already if it has no file, or if the file is that of a device (ENODEV).
Status HostArena::allocate(uint64_t begin, uint64_t end, uint64_t* done) {
  *done = begin;
  if (!fd_.valid()) return success();
  if (huge_pages_ && end > begin) madvise(base_ + begin, end - begin, MADV_HUGEPAGE);
  while (*done < end) {
    if (!outside_ && *done > begin) FSCCL_TRY(check_available(end - *done));
    uint64_t at = file_offset_ + *done;
    const int error =
        reserve_file(fd_.get(), &at, file_offset_ + std::min(*done + kCheckEveryBytes, end));
    *done = at - file_offset_;
    if (error == 0) continue;
    if (outside_ && error == ENODEV) return success();
    return fail_errno(
        error,
        fmt::format("host arena: fallocate of {} bytes, {} of them done ({} bytes available)",
                    end - begin, *done - begin, available_memory().bytes));
  }
  return success();
}

Status HostArena::populate(int rank, uint64_t offset, uint64_t bytes) {
  uint64_t begin = 0, end = 0;
  if (!whole_pages(rank, offset, bytes, &begin, &end)) {
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "host arena: [{}, {} + {}) of rank {} is outside its region of {} bytes", offset,
                offset, bytes, rank, region_bytes_);
  }
  if (huge_pages_ && end > begin) madvise(base_ + begin, end - begin, MADV_HUGEPAGE);
  for (uint64_t at = begin; at < end;) {
    const uint64_t step = std::min(kPopulateStepBytes, end - at);
    if (madvise(base_ + at, step, MADV_POPULATE_WRITE) == 0) {
      at += step;
      continue;
    }
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL)
      return fail_errno(errno,
                        fmt::format("host arena: madvise(MADV_POPULATE_WRITE) of {} bytes", step));
    touch(base_ + at, step);  // a kernel before 5.14
    at += step;
  }
  if (huge_pages_) {
    const uint64_t first = (begin + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes,
                   last = end / kHugePageBytes * kHugePageBytes;
    if (last > first) madvise(base_ + first, last - first, MADV_COLLAPSE);
  }
  return success();
}

void HostArena::release(int rank, uint64_t offset, uint64_t bytes) {
  uint64_t begin = 0, end = 0;
  if (!whole_pages(rank, offset, bytes, &begin, &end)) return;
  const uint64_t region_begin = control_bytes_ + static_cast<uint64_t>(rank) * region_bytes_;
  if (begin < region_begin + offset) begin += page_bytes();
  if (end > region_begin + offset + bytes) end -= page_bytes();
  if (begin >= end) return;
  // If this fails, because the file system cannot punch holes, the memory stays, counts as
  // reserved, and is used again.
  if (fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                static_cast<off_t>(file_offset_ + begin), static_cast<off_t>(end - begin)) != 0)
    return;
  reserved_.remove(begin, end);
}

}  // namespace fsccl
