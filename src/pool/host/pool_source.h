// The source of a pool's memory, if its program has given one (fsccl_pool_config_t.source): a stack
// of adaptors on a source.
//
// The stack of each rank is asked when memory grows that this rank owns. The end of the stack is
// either the system or a source from outside the library. If it is the system, the arena is the
// library's own file. If it is a source from outside, the first rank of a host asks it once, for
// the whole arena, and the other ranks map the file that it shares. Memory without a file serves
// only a rank that is alone on its host.
#pragma once
#include <memory>

#include "allocators/adaptors/memory_source.h"
#include "allocators/host/arena.h"

namespace fsccl {

class PoolSource {
 public:
  PoolSource() = default;  // the library's own memory, without a stack
  // Checks that a pool can get its memory from the stack.
  static Result<PoolSource> of(Result<std::shared_ptr<MemorySource>> stack);
  PoolSource(PoolSource&& other) noexcept { *this = std::move(other); }
  PoolSource& operator=(PoolSource&& other) noexcept;
  ~PoolSource() { give_back(); }

  MemorySource* stack() const { return stack_.get(); }
  bool outside() const { return end_ && !end_->is_system(); }
  // Makes the arena on the first rank of a host. Memory from an outside source is given back with
  // this object, so the arena has to go before.
  Result<HostArena> make_arena(int ranks, uint64_t control_bytes, uint64_t region_bytes);

 private:
  Result<HostArena> map_block(int ranks, uint64_t control_bytes, uint64_t region_bytes);
  void give_back();

  std::shared_ptr<MemorySource> stack_;
  EndSource* end_ = nullptr;  // the end of the stack of sources
  void* block_ = nullptr;     // the block of that end in which the arena lies
  MemoryRequest request_;
};

}  // namespace fsccl
