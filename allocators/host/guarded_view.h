// Debug mode: a second mapping of an arena. The addresses of slots that a pool gives to callers lie
// in it. A page can be accessed there only while its slot is the caller's, and only to read if the
// slot is read-only. Any other access is a SIGSEGV, and fault_notes.h says what it hit. The library
// itself uses the arena's own mapping, in which everything stays accessible, so no collective
// depends on the guard.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocators/host/file_view.h"
#include "base/status.h"

namespace fsccl {

enum class Access : uint8_t { none, read, write };

// Sets the access to the pages of [begin, begin + bytes) in any mapping. Returns false if the
// system refuses.
bool set_access(const void* begin, uint64_t bytes, Access access);

class GuardedView {
 public:
  // Maps the first `bytes` bytes of the file, with access to none of them.
  static Result<GuardedView> create(int fd, uint64_t bytes);
  std::byte* base() const { return view_.base(); }

 private:
  explicit GuardedView(FileView view) : view_(std::move(view)) {}

  FileView view_;
};

}  // namespace fsccl
