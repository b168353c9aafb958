// Debug mode: a second mapping of an arena, with which a pool answers what callers ask for the address of a slot. Callers may touch
// only what is theirs at the moment, page by page, and only to read what is read-only; anything else is SIGSEGV, and
// fault_notes.h says what it hit. The library itself works through the arena's own mapping, which is always open, so nothing of a
// collective depends on the guard.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace fsccl {

enum class Access : uint8_t { none, read, write };

// For [begin, begin + bytes), in whole pages, of any mapping. False: the system refuses.
bool set_access(const void* begin, uint64_t bytes, Access access);

class GuardedView {
 public:
  // Of the first `bytes` bytes of the file, all closed. Costs address space only. A child of fork() does not have it.
  static Result<GuardedView> create(int fd, uint64_t bytes);
  GuardedView(GuardedView&&) noexcept;
  GuardedView& operator=(GuardedView&&) noexcept;
  ~GuardedView();

  std::byte* base() const { return base_; }

 private:
  GuardedView() = default;

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  pid_t owner_ = 0;  // the process that mapped it
};

}  // namespace fsccl
