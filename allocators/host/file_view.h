// A further mapping of a range of an arena's file, which ends with this object. It costs only
// address space. A child of fork() does not have the mapping.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace fsccl {

class FileView {
 public:
  // Maps `bytes` bytes of the file from `offset` on, with mmap's `protection` and `sharing`. Errors
  // call the mapping `name`.
  static Result<FileView> map(int fd, uint64_t offset, uint64_t bytes, int protection, int sharing,
                              const char* name);
  FileView(FileView&&) noexcept;
  FileView& operator=(FileView&&) noexcept;
  ~FileView();

  std::byte* base() const { return base_; }
  uint64_t bytes() const { return bytes_; }

 private:
  FileView() = default;

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  pid_t owner_ = 0;  // the process that mapped it
};

}  // namespace fsccl
