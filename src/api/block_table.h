// The blocks that somebody outside has got from a source: so that a foreign, freed or resized
// pointer is an error, and so is a block that a source from outside gives twice. Any thread.
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

  // A block of `source`, on record.
  Result<void*> allocate(const std::shared_ptr<MemorySource>& source, const MemoryRequest& request);
  // Gives the block back to the source that it is of. Whatever that says to it, it is off the
  // record.
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
