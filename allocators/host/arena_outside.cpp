// Arenas on memory of a source of the program: a range of its file, or memory without a file.
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <utility>

#include "allocators/host/arena.h"

namespace fsccl {

namespace {

// An arena begins at a multiple of 2 MiB, at which a file of larger pages cannot be mapped.
constexpr uint64_t kMostPageBytes = uint64_t{2} << 20;

Status check_pages(int fd) {
  struct statfs system{};
  if (fstatfs(fd, &system) != 0 || system.f_type != HUGETLBFS_MAGIC) return success();
  const auto page = static_cast<uint64_t>(system.f_bsize);
  if (page <= kMostPageBytes) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "host arena: the source's file consists of huge pages of {} bytes each, and pages of "
              "at most {} bytes can be used; give a file of such pages",
              page, kMostPageBytes);
}

}  // namespace

Result<HostArena> HostArena::adopt(Fd fd, uint64_t file_offset, int ranks, uint64_t control_bytes,
                                   uint64_t region_bytes) {
  FSCCL_ASSIGN(HostArena arena, with_sizes(ranks, control_bytes, region_bytes));
  struct stat state{};
  if (fstat(fd.get(), &state) != 0)
    return fail_errno(errno, "host arena: fstat of the source's file");
  FSCCL_TRY(check_pages(fd.get()));
  uint64_t end = 0;
  const bool wraps =
      __builtin_add_overflow(file_offset, arena.total_bytes_, &end) || end > INT64_MAX;
  if (wraps || (S_ISREG(state.st_mode) && static_cast<uint64_t>(state.st_size) < end))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "host arena: the source's file has {} bytes: too few for {} bytes from byte {} on",
                state.st_size, arena.total_bytes_, file_offset);
  arena.fd_ = std::move(fd);
  arena.file_offset_ = file_offset;
  arena.outside_ = true;
  FSCCL_TRY(arena.map());
  uint64_t done = 0;
  FSCCL_TRY(arena.allocate(0, arena.control_bytes_, &done));
  return arena;
}

Result<HostArena> HostArena::over(std::byte* memory, uint64_t control_bytes,
                                  uint64_t region_bytes) {
  FSCCL_ASSIGN(HostArena arena, with_sizes(1, control_bytes, region_bytes));
  arena.base_ = memory;  // no owner_: the source unmaps it
  arena.outside_ = true;
  return arena;
}

Result<uint64_t> HostArena::file_offset(const void* pointer) const {
  if (fd_.valid())
    return file_offset_ + static_cast<uint64_t>(static_cast<const std::byte*>(pointer) - base_);
  return fail(FSCCL_ERR_NOT_AVAILABLE,
              "the memory of this pool comes from a source that has no file (share in "
              "fsccl/allocator.h), so it can be mapped in one "
              "place only: there are no imports and no FSCCL_SHARING_COPY_ON_WRITE on it");
}

}  // namespace fsccl
