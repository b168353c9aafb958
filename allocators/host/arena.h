// The host arena is one anonymous file (memfd) for each pool, which all ranks of a host map, so
// that every rank can compute the address of every other rank's memory. The file is sparse: each
// rank has a region of `region_bytes` bytes in it, and memory exists only where a rank has reserved
// it. The file has no name, so nothing is left behind when the processes end. It is sealed against
// shrinking and growing, so that no peer can turn an access into SIGBUS.
//
//   file:  | control page(s) | region of rank 0 | region of rank 1 | ...
//
// The file, or the memory of a single rank, may also come from a source of the program (adopt(),
// over()). The owner of the arena decides its size and accounts for its memory.
//
// Thread rules: one thread at a time may call reserve(), populate(), release() and
// reserved_bytes(). Any thread may call the other const functions. A child of fork() does not have
// the mapping.
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
  // Creates the file. One rank calls this and gives the descriptor to the others, which call
  // open(). Sizes are rounded up to whole pages.
  static Result<HostArena> create(int ranks, uint64_t control_bytes, uint64_t region_bytes);
  // Maps the file of another rank. Returns an error unless it is a sealed file of exactly the
  // expected size.
  static Result<HostArena> open(Fd fd, int ranks, uint64_t control_bytes, uint64_t region_bytes);
  // Makes an arena for all ranks on a file of a source, from byte `file_offset` of the file on. The
  // rank that got the file from the source must clear the control bytes, which may have any
  // contents.
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
  uint64_t file_begin() const { return file_offset_; }  // offset in the file
  // Returns the offset in the file of an address of the arena, or an error if there is no file.
  Result<uint64_t> file_offset(const void* pointer) const;
  // Finds the region in which an address lies, and its offset there. Returns false if it lies in
  // none.
  bool locate(const void* pointer, int* rank, uint64_t* offset) const;

  // Makes memory exist for [offset, offset + bytes) of the rank's region, in whole pages. If memory
  // is short, returns an error and has reserved nothing new. With `populate` it also faults the
  // range into this process. create() has reserved the control pages.
  Status reserve(int rank, uint64_t offset, uint64_t bytes, bool populate);
  // Faults a range, which some rank has reserved, into this process.
  Status populate(int rank, uint64_t offset, uint64_t bytes);
  // Gives the memory of the whole pages inside the range back to the system. The addresses stay,
  // and the pages are zero when they are reserved again.
  void release(int rank, uint64_t offset, uint64_t bytes);
  // Returns the bytes that this object has reserved and not released, without the control pages.
  uint64_t reserved_bytes() const { return reserved_.bytes(); }

  // From now on reserve() and populate() ask the system for huge pages. A system that has none for
  // shared memory ignores that.
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
  bool outside_ = false;      // the memory is that of a source
  int ranks_ = 0;
  bool huge_pages_ = false;
  pid_t owner_ = 0;      // the process that mapped it
  ByteRanges reserved_;  // ranges that this object reserved, as offsets from base_
};

}  // namespace fsccl
