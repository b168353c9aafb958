#include "pool/host/import.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <sstream>
#include <string>
#include <string_view>

#include "base/limits.h"
#include "base/populate.h"
#include "base/small_file.h"

namespace fsccl {
namespace {

constexpr const char* kHowTo =
    "allocate it with aligned_alloc(4096, ...) or mmap(MAP_PRIVATE | MAP_ANONYMOUS)";

// A line of /proc/self/maps: begin-end permissions offset device inode [name].
struct Mapping {
  uint64_t begin = 0, end = 0, inode = 0;
  char permissions[5] = "";
  std::string_view name;
};

bool parse(const std::string& line, Mapping* mapping) {
  int name_at = 0;
  if (std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64 " %4s %*s %*s %" SCNu64 " %n",
                  &mapping->begin, &mapping->end, mapping->permissions, &mapping->inode,
                  &name_at) != 4)
    return false;
  mapping->name =
      std::string_view(line).substr(std::min(static_cast<size_t>(name_at), line.size()));
  return true;
}

// Returns why the mapping cannot be imported; null if it can.
const char* objection(const Mapping& mapping) {
  if (mapping.name.find("hugepage") != std::string_view::npos ||
      mapping.name.find("hugetlb") != std::string_view::npos)
    return "of huge pages";
  if (mapping.name.find("fsccl-arena") != std::string_view::npos) return "of a pool already";
  if (mapping.permissions[3] != 'p') return "shared with other processes";
  if (mapping.inode != 0) return "of a file";
  if (mapping.name.rfind("[stack", 0) == 0) return "a stack";
  if (std::strncmp(mapping.permissions, "rw-", 3) != 0) return "not readable and writable only";
  return nullptr;
}

}  // namespace

Status check_importable(const void* pointer, uint64_t bytes) {
  const auto begin = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || bytes == 0 || begin % page_bytes() || bytes % page_bytes() ||
      bytes > UINT64_MAX - begin)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} and {} bytes are not whole pages of {} bytes: {}, and round its size up",
                pointer, bytes, page_bytes(), kHowTo);
  const auto stack = reinterpret_cast<uint64_t>(__builtin_frame_address(0));
  if (stack >= begin && stack - begin < bytes)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is this thread's stack: {}", pointer, kHowTo);
  std::istringstream maps(read_small_file("/proc/self/maps"));
  if (maps.view().empty())
    return fail(FSCCL_ERR_SYSTEM,
                "cannot read /proc/self/maps, which tells what memory it is: mount /proc");
  uint64_t reached = begin;
  Mapping mapping;
  for (std::string line; reached < begin + bytes && std::getline(maps, line);) {
    if (!parse(line, &mapping) || mapping.end <= reached) continue;
    if (mapping.begin > reached) break;
    if (const char* why = objection(mapping))
      return fail(
          FSCCL_ERR_INVALID_ARGUMENT,
          "the memory at {:#x} is {} ({} {}); only private anonymous memory can be imported: {}",
          reached, why, mapping.permissions, mapping.name, kHowTo);
    reached = mapping.end;
  }
  if (reached >= begin + bytes) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT, "there is no memory at {:#x}, within {} + {} bytes",
              reached, pointer, bytes);
}

Status move_into_arena(void* pointer, uint64_t bytes, void* block, int fd, uint64_t file_offset) {
  std::memcpy(block, pointer, bytes);
  if (mmap(pointer, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
           static_cast<off_t>(file_offset)) == MAP_FAILED)
    return fail_errno(errno,
                      fmt::format("mmap of the pool's pages over {} bytes at {}", bytes, pointer));
  // A child of fork() must not write to its parent's data; the arena is treated in the same way.
  madvise(pointer, bytes, MADV_DONTFORK);
  populate(pointer, bytes);
  return success();
}

Status move_out_of_arena(void* pointer, uint64_t bytes) {
  void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED)
    return fail_errno(errno, fmt::format("mmap of {} bytes to end an import", bytes));
  std::memcpy(fresh, pointer, bytes);
  if (mremap(fresh, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pointer) != MAP_FAILED)
    return success();
  const int error = errno;
  munmap(fresh, bytes);
  return fail_errno(error,
                    fmt::format("mremap of {} bytes to {} to end an import", bytes, pointer));
}

}  // namespace fsccl
