// Debug mode: a second mapping of an arena, with which a pool answers what callers ask for the
// address of a slot. Callers may touch only what is theirs at the moment, page by page, and only to
// read what is read-only; anything else is SIGSEGV, and fault_notes.h says what it hit. The library
// itself works through the arena's own mapping, which is always open, so nothing of a collective
// depends on the guard.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocators/host/file_view.h"
#include "base/status.h"

namespace fsccl {

enum class Access : uint8_t { none, read, write };

// For [begin, begin + bytes), in whole pages, of any mapping. False: the system refuses.
bool set_access(const void* begin, uint64_t bytes, Access access);

class GuardedView {
 public:
  // Maps the first `bytes` bytes of the file, all closed.
  static Result<GuardedView> create(int fd, uint64_t bytes);
  std::byte* base() const { return view_.base(); }

 private:
  explicit GuardedView(FileView view) : view_(std::move(view)) {}

  FileView view_;
};

}  // namespace fsccl
