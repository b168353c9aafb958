// A second, private mapping of a range of an arena's file. A write through it gives this process a
// page of its own, and does not change the file, which all ranks of the host map. Pages that were
// not written always show what the file holds. drop_writes() brings a range back to that state.
//
// Invariant: while nobody has a slot, no page of its range here is a written one. Otherwise the
// parameters of the unit that takes the slot next would be hidden behind such a page.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>

#include "allocators/host/file_view.h"
#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class PrivateView {
 public:
  // Maps `bytes` bytes of the file from `offset` on; both are whole pages.
  static Result<PrivateView> create(int fd, uint64_t offset, uint64_t bytes);

  std::byte* base() const { return view_.base(); }
  // Makes the pages of [offset, offset + bytes) that were written show the file again. Returns the
  // number of bytes dropped, a multiple of a page.
  uint64_t drop_writes(uint64_t offset, uint64_t bytes);

 private:
  PrivateView(FileView view, Fd pagemap) : view_(std::move(view)), pagemap_(std::move(pagemap)) {}

  FileView view_;
  Fd pagemap_;  // pagemap of this process; invalid if it cannot be opened
};

}  // namespace fsccl
