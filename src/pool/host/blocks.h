// The blocks of a pool, which each rank allocates alone: memory that the program asks for by the
// byte, and imports, which are memory of the program whose pages became a block (import.h). In
// debug mode every call is checked (block_watch.h).
#pragma once
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "allocators/host/arena.h"
#include "allocators/placement/block_watch.h"
#include "allocators/placement/journal.h"
#include "allocators/placement/region.h"
#include "engine/arena_table.h"

namespace fsccl {

class Blocks {
 public:
  struct Setup {
    std::string pool;  // its name
    HostArena* arena = nullptr;
    ArenaTable* arenas = nullptr;
    uint32_t arena_id = 0;
    std::byte* memory = nullptr;  // the region's memory
    uint64_t bytes = 0;
    bool dry_run = false, debug = false;
    Journal* journal = nullptr;
    std::function<uint64_t()> left;  // bytes that the pool may still reserve
    // Makes the first `extent` bytes of the region exist. It is called without a lock.
    std::function<Status(uint64_t extent)> grow;
  };
  explicit Blocks(Setup setup);
  ~Blocks();

  // Returns memory that is aligned to `alignment` at least.
  Result<void*> alloc(uint64_t bytes, uint64_t alignment, const Journal::Owner& owner);
  Status import(void* pointer, uint64_t bytes);
  // Frees a block or an import. In debug mode an error says if the program wrote beyond the block,
  // which is freed all the same.
  Status free(void* pointer);

  struct Figures {
    uint64_t blocks = 0, imports = 0, live_bytes = 0, peak_bytes = 0, allocations = 0, frees = 0;
  };
  Figures figures() const;
  // Takes no lock.
  uint64_t live_bytes() const { return live_bytes_.load(std::memory_order_relaxed); }
  std::string list() const;  // returns a list of the blocks, the largest first
  // Calls release(top), which gives back the memory above all blocks, and returns its result. No
  // block is made during the call. A block whose memory is being asked for counts as a block.
  uint64_t shrink(const std::function<uint64_t(uint64_t top)>& release);
  Status look();  // debug mode: returns an error if the program wrote to free memory

 private:
  struct Bytes {
    uint64_t begin = 0, end = 0;
  };
  Result<Bytes> take(uint64_t room, uint64_t alignment, uint64_t bytes,
                     std::unique_lock<std::mutex>& lock);
  Result<void*> add(Block&& block, const Journal::Owner& owner);
  Status end(const Block& block);
  Status not_a_block(const void* pointer) const;

  const Setup setup_;
  mutable std::mutex mutex_;
  NodeMemory nodes_;
  std::pmr::map<const std::byte*, Block> blocks_{nodes_.get()};  // by address
  Region region_;
  uint64_t reached_ = 0;               // the highest end of a block ever
  std::unique_ptr<BlockWatch> watch_;  // debug mode
  Figures figures_;
  std::atomic<uint64_t> live_bytes_{0};
  uint64_t calls_ = 0;
};

}  // namespace fsccl
