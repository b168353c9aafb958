// Blocks of device memory, which each rank allocates alone. Their use is ordered by streams. Bytes
// that were freed on a stream can be used by this stream at once. All streams can use them when a
// look at the stream's events finds that the work before the free is done. A stream for which no
// other bytes suffice takes bytes of another stream, and waits for them on the device; from then on
// they are its own bytes. A program whose steps are alike therefore soon neither waits nor calls
// the driver.
//
// A stream that is being captured gets only bytes that no stream uses any more, because a graph
// cannot wait for earlier work. Bytes that are freed in a capture stay with the graph, which goes
// on using them.
//
// The arena grows by segments of 20 MiB or more, because each segment costs calls of the driver
// that wait for the device, and is given back as a whole. (PyTorch's allocator asks for as much at
// once, so pools beside it fragment memory no more than it does.)
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
  // Gives back the segments at the end of the arena that have no block. Waits until `deadline` for
  // the streams that still use them.
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
  uint64_t free_tail() const;  // returns where the free bytes at the end begin
  Status fill(uint64_t begin, uint64_t end, cuda::CUstream stream) const;

  DeviceMemory& memory_;
  StreamMarks& marks_;
  std::mutex& mutex_;
  Journal& journal_;
  const std::string pool_;
  const bool poison_;

  FreeRanges shared_;               // bytes that every stream may use
  std::deque<FreeRanges> streams_;  // by number
  uint64_t bytes_ = 0;              // bytes of the arena that this object manages
  std::unordered_map<uint64_t, Block> blocks_;
  // The service thread reads the figures for metrics. It must not wait for mutex_, which is held in
  // calls of the driver and in waits for streams.
  mutable std::mutex figures_mutex_;
  Figures figures_;
  uint64_t calls_ = 0, waits_ = 0;
};

}  // namespace fsccl
