// A second, private mapping of a range of an arena's file: whoever writes through it gets a page of its own, and the file, which
// all ranks of the host map, does not change. Pages that were not written show what the file holds, always. drop_writes() brings a
// range back to that state.
//
// Invariant: outside of a tenancy of a slot its range has no written pages here, else the next tenant's parameters would be hidden
// behind them.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class PrivateView {
 public:
  // Of `bytes` bytes of the file from `offset` on, both whole pages. Costs address space only. A child of fork() does not have it.
  static Result<PrivateView> create(int fd, uint64_t offset, uint64_t bytes);
  PrivateView(PrivateView&&) noexcept;
  PrivateView& operator=(PrivateView&&) noexcept;
  ~PrivateView();

  std::byte* base() const { return base_; }
  // Pages of [offset, offset + bytes) that were written show the file again. The bytes dropped: in whole pages.
  uint64_t drop_writes(uint64_t offset, uint64_t bytes);

 private:
  PrivateView() = default;

  std::byte* base_ = nullptr;
  uint64_t bytes_ = 0;
  Fd pagemap_;       // of this process; invalid where there is none
  pid_t owner_ = 0;  // the process that mapped it
};

}  // namespace fsccl
