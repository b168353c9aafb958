#include "pool/host/pool_source.h"

#include <cstring>
#include <utility>

#include "base/limits.h"
#include "base/log.h"

namespace fsccl {

Result<PoolSource> PoolSource::of(Result<std::shared_ptr<MemorySource>> stack) {
  if (!stack.ok()) return stack.take_status();
  PoolSource source;
  source.stack_ = stack.take();
  if (!source.stack_) return source;
  FSCCL_ASSIGN(source.end_, source.stack_->end());
  if (source.end_->memory() == FSCCL_MEMORY_HOST) return source;
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "a pool of host memory was given a source of device memory");
}

PoolSource& PoolSource::operator=(PoolSource&& other) noexcept {
  if (this == &other) return *this;
  give_back();
  stack_ = std::move(other.stack_);
  end_ = std::exchange(other.end_, nullptr);
  block_ = std::exchange(other.block_, nullptr);
  request_ = other.request_;
  return *this;
}

Result<HostArena> PoolSource::make_arena(int ranks, uint64_t control_bytes, uint64_t region_bytes) {
  if (!outside()) return HostArena::create(ranks, control_bytes, region_bytes);
  request_ = {.bytes = control_bytes + static_cast<uint64_t>(ranks) * region_bytes,
              .alignment = page_bytes()};
  Result<void*> block = end_->allocate(request_);
  if (!block.ok())
    return fail(block.status().code(),
                "the pool's source was asked for {} bytes, for {} rank(s) with three parts of the "
                "limit each (limit_bytes, or a third "
                "of FSCCL_POOL_REGION_BYTES): {}",
                request_.bytes, ranks, block.status().text());
  block_ = block.value();
  FSCCL_ASSIGN(HostArena arena, map_block(ranks, control_bytes, region_bytes));
  std::memset(arena.control(), 0, control_bytes);
  return arena;
}

Result<HostArena> PoolSource::map_block(int ranks, uint64_t control_bytes, uint64_t region_bytes) {
  Result<SharedMemory> shared = end_->share(block_);
  if (shared.ok()) {
    SharedMemory file = shared.take();
    return HostArena::adopt(std::move(file.fd), file.offset, ranks, control_bytes, region_bytes);
  }
  if (shared.status().code() == FSCCL_ERR_NOT_AVAILABLE && ranks == 1)
    return HostArena::over(static_cast<std::byte*>(block_), control_bytes, region_bytes);
  return fail(
      shared.status().code(),
      "{} ranks of this host have to map the memory of the pool's source, which is not shared: {}",
      ranks, shared.status().text());
}

void PoolSource::give_back() {
  if (!block_) return;
  const Status status = end_->deallocate(std::exchange(block_, nullptr), request_);
  if (!status.ok())
    FSCCL_LOG(kWarn, "the source of a pool does not take its memory back: {}", status.text());
}

}  // namespace fsccl
