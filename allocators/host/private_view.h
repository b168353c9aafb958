// A second, private mapping of a range of an arena's file: whoever writes through it gets a page of
// its own, and the file, which all ranks of the host map, does not change. Pages that were not
// written show what the file holds, always. drop_writes() brings a range back to that state.
//
// Invariant: outside of a tenancy of a slot its range has no written pages here, else the next
// tenant's parameters would be hidden behind them.
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
  // Pages of [offset, offset + bytes) that were written show the file again. The bytes dropped: in
  // whole pages.
  uint64_t drop_writes(uint64_t offset, uint64_t bytes);

 private:
  PrivateView(FileView view, Fd pagemap) : view_(std::move(view)), pagemap_(std::move(pagemap)) {}

  FileView view_;
  Fd pagemap_;  // pagemap of this process; invalid where there is none
};

}  // namespace fsccl
