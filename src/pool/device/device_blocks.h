// Blocks of device memory that are this rank's own affair, ordered by streams. Bytes that were
// freed on a stream are that stream's at once, and everybody's when a look at its events says that
// what it had been given by then is done. A stream that has nothing else of the size takes other
// streams' bytes and waits for them on the device, so from then on they are its own: a program
// whose steps are alike soon waits for nothing, and asks the driver for nothing.
//
// A stream that is being captured gets what nobody uses any more, for a graph waits for nothing
// that was before it; and gives nothing back, for the graph goes on using it.
//
// The arena grows by 20 MiB or more: each segment costs calls of the driver that wait for the
// device, and is given back whole. (PyTorch's allocator asks for as much at once, so that pools
// beside it fragment no more than it does.)
#pragma once
#include <deque>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "allocators/placement/journal.h"
#include "pool/device/device_memory.h"
#include "pool/device/free_ranges.h"
#include "pool/device/stream_marks.h"

namespace fsccl {

class DeviceBlocks {
 public:
  // alignment of every block, as PyTorch's kernels expect it
  static constexpr uint64_t kAlignment = 512;
  static constexpr uint64_t kSegment = 20u << 20;

  // `mutex` guards the marks, too, which the pool's slots share.
  DeviceBlocks(DeviceMemory& memory, StreamMarks& marks, std::mutex& mutex, Journal& journal,
               std::string pool, bool poison)
      : memory_(memory),
        marks_(marks),
        mutex_(mutex),
        journal_(journal),
        pool_(std::move(pool)),
        poison_(poison) {}

  Result<void*> alloc(uint64_t bytes, cuda::CUstream stream, uint64_t alignment);
  Status free(void* pointer, cuda::CUstream stream);

  struct Figures {
    uint64_t blocks = 0, live_bytes = 0, peak_bytes = 0, allocations = 0, frees = 0;
  };
  Figures figures() const;
  std::string list() const;  // returns a list of the blocks, the largest first
  // Gives the segments at the end back that nobody has a block in, and that no stream uses any
  // more; `deadline`: waits for that.
  uint64_t trim(Deadline deadline);
  uint64_t waits() const;  // returns the waits of one stream for another that blocks asked for

 private:
  struct Block {
    uint64_t begin, end, bytes, call;
    cuda::CUstream stream;
  };
  static constexpr uint32_t kNobody = ~uint32_t{0};
  FreeRanges& ranges_of(uint32_t stream);
  void share_finished();
  Result<bool> capturing(cuda::CUstream stream) const;
  std::optional<uint64_t> find(uint64_t room, uint64_t alignment, uint32_t stream, bool captured);
  std::optional<uint64_t> find_together(uint64_t room, uint64_t alignment, uint32_t stream) const;
  Status claim(uint64_t begin, uint64_t end, uint32_t stream);
  Result<uint64_t> place(uint64_t room, uint64_t alignment, uint32_t stream, bool captured,
                         std::unique_lock<std::mutex>& lock);
  Status grow(uint64_t room, uint64_t alignment, bool captured, bool* asked,
              std::unique_lock<std::mutex>& lock);
  uint64_t free_tail() const;  // where it begins
  Status fill(uint64_t begin, uint64_t end, cuda::CUstream stream) const;

  DeviceMemory& memory_;
  StreamMarks& marks_;
  std::mutex& mutex_;
  Journal& journal_;
  const std::string pool_;
  const bool poison_;

  FreeRanges everybodys_;
  std::deque<FreeRanges> streams_;  // by number
  uint64_t bytes_ = 0;              // bytes of the arena that this object manages
  std::unordered_map<uint64_t, Block> blocks_;
  Figures figures_;
  uint64_t calls_ = 0, waits_ = 0;
};

}  // namespace fsccl
