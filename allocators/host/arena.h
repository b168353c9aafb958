// The host arena: one anonymous file (memfd) per pool that all ranks of a host map, so that every
// rank can reach every other's part by arithmetic. It is sparse: each rank has a region of
// `region_bytes` of address space in it, and memory exists only where a rank reserved it. Nothing
// has a name, so nothing can be left behind; sealed against shrinking and growing, so no peer can
// turn an access into SIGBUS.
//
//   file:  | control page(s) | region of rank 0 | region of rank 1 | ...
//
// The file, or the memory of a single rank, may also come from a source outside (adopt, over).
// The owner of the arena decides its size and accounts for its memory.
//
// Thread rules: one thread at a time may reserve, populate and release; everything else is free. A
// child of fork() does not have the mapping.
#pragma once
#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "allocators/host/byte_ranges.h"
#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

class HostArena {
 public:
  // Creates the file, on one rank; the others open() the descriptor they were handed. Sizes are
  // rounded up to whole pages.
  static Result<HostArena> create(int ranks, uint64_t control_bytes, uint64_t region_bytes);
  // Checks what it got: a memfd of exactly the expected size, sealed.
  static Result<HostArena> open(Fd fd, int ranks, uint64_t control_bytes, uint64_t region_bytes);
  // On a file of a source, from byte `file_offset` of it on, for all ranks. Its owner has to clear
  // the control bytes.
  static Result<HostArena> adopt(Fd fd, uint64_t file_offset, int ranks, uint64_t control_bytes,
                                 uint64_t region_bytes);
  // Makes an arena of one rank over `memory`, which belongs to the process and begins at a page.
  // There is no file: fd() is -1.
  static Result<HostArena> over(std::byte* memory, uint64_t control_bytes, uint64_t region_bytes);
  HostArena(HostArena&&) noexcept;
  HostArena& operator=(HostArena&&) noexcept;
  ~HostArena();

  int fd() const { return fd_.get(); }
  uint64_t region_bytes() const { return region_bytes_; }
  std::byte* control() const { return base_; }
  std::byte* region(int rank) const {
    return base_ + control_bytes_ + static_cast<uint64_t>(rank) * region_bytes_;
  }
  uint64_t file_begin() const { return file_offset_; }  // where in the file the arena begins
  // Returns where in the file an address of the arena lies; an error when there is no file.
  Result<uint64_t> file_offset(const void* pointer) const;
  // Inverse: which region and offset an address lies in; false when it is outside.
  bool locate(const void* pointer, int* rank, uint64_t* offset) const;

  // Makes [offset, offset + bytes) of rank's region exist (page rounded), an error when memory is
  // short; then nothing new was reserved. Faults it into this process when `populate`. The control
  // pages are reserved by create().
  Status reserve(int rank, uint64_t offset, uint64_t bytes, bool populate);
  // Faults a range, which some rank has reserved, into this process.
  Status populate(int rank, uint64_t offset, uint64_t bytes);
  // Gives the whole pages inside the range back (the address space stays). Their contents are zero
  // when they are reserved again.
  void release(int rank, uint64_t offset, uint64_t bytes);
  // Bytes that this object has reserved and not released, without the control pages.
  uint64_t reserved_bytes() const { return reserved_.bytes(); }

  // From now on reserve() and populate() ask the system for huge pages. Best effort: a system that
  // has none for shared memory changes nothing.
  void set_huge_pages(bool huge_pages) { huge_pages_ = huge_pages; }

 private:
  HostArena() = default;
  static Result<HostArena> with_sizes(int ranks, uint64_t control_bytes, uint64_t region_bytes);
  Status map();
  void unmap();
  Status allocate(uint64_t begin, uint64_t end, uint64_t* done);
  bool whole_pages(int rank, uint64_t offset, uint64_t bytes, uint64_t* begin, uint64_t* end) const;

  Fd fd_;
  std::byte* base_ = nullptr;
  uint64_t control_bytes_ = 0, region_bytes_ = 0, total_bytes_ = 0;
  uint64_t file_offset_ = 0;  // offset of base_ in the file
  bool outside_ = false;      // a source's
  int ranks_ = 0;
  bool huge_pages_ = false;
  pid_t owner_ = 0;      // the process that mapped it
  ByteRanges reserved_;  // ranges of the file that this object reserved
};

}  // namespace fsccl
