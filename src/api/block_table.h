// Records the blocks that a caller outside the library has received from a source. A foreign, freed
// or resized pointer is therefore an error, and so is a block that an outside source gives twice.
// Any thread may call.
#pragma once
#include <cstdint>
#include <map>
#include <mutex>

#include "allocators/adaptors/memory_source.h"

namespace fsccl {

class BlockTable {
 public:
  struct Block {
    uint64_t bytes = 0;
    std::shared_ptr<MemorySource> source;
  };

  // Allocates a block of `source` and records it.
  Result<void*> allocate(const std::shared_ptr<MemorySource>& source, const MemoryRequest& request);
  // Gives the block back to its source, and removes it from the record even if the source fails.
  Status deallocate(void* pointer, uint64_t bytes, void* stream);
  Status check(const void* pointer) const;  // that it is a block
  uint64_t blocks() const;
  uint64_t bytes() const;

 private:
  bool add(void* pointer, const Block& block);

  mutable std::mutex mutex_;
  std::map<uintptr_t, Block> blocks_;  // disjoint
  uint64_t bytes_ = 0;
};

}  // namespace fsccl
