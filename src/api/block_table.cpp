#include "api/block_table.h"

#include <algorithm>

namespace fsccl {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 47, kMostAlignment = uint64_t{1} << 30;

Status unknown(const void* pointer) {
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "{} is not a block of this allocator, or was given back before", pointer);
}

}  // namespace

bool BlockTable::add(void* pointer, const Block& block) {
  const auto begin = reinterpret_cast<uintptr_t>(pointer);
  const std::lock_guard lock(mutex_);
  const auto next = blocks_.lower_bound(begin);
  if (next != blocks_.end() && next->first - begin < std::max<uint64_t>(block.bytes, 1))
    return false;
  if (next != blocks_.begin()) {
    const auto before = std::prev(next);
    if (begin - before->first < std::max<uint64_t>(before->second.bytes, 1)) return false;
  }
  blocks_.emplace_hint(next, begin, block);
  bytes_ += block.bytes;
  return true;
}

Result<void*> BlockTable::allocate(const std::shared_ptr<MemorySource>& source,
                                   const MemoryRequest& request) {
  const uint64_t alignment = request.alignment;
  if (request.bytes > kMostBytes)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are more than any machine has",
                request.bytes);
  if (alignment == 0 || (alignment & (alignment - 1)) != 0 || alignment > kMostAlignment)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the alignment is {}: it must be a power of two up to {}", alignment,
                kMostAlignment);
  FSCCL_ASSIGN(void* pointer, source->allocate(request));
  if (add(pointer, {request.bytes, source})) return pointer;
  // The block belongs to the caller that received it first, so it is not given back.
  return fail(FSCCL_ERR_INVALID_STATE,
              "the source gave {} for {} bytes, which overlaps a block that is out", pointer,
              request.bytes);
}

Status BlockTable::deallocate(void* pointer, uint64_t bytes, void* stream) {
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == blocks_.end()) return unknown(pointer);
    if (found->second.bytes != bytes)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the block at {} has {} bytes, and {} were given back", pointer,
                  found->second.bytes, bytes);
    block = found->second;
    blocks_.erase(found);
    bytes_ -= bytes;
  }
  return block.source->deallocate(pointer, {.bytes = bytes, .stream = stream});
}

Status BlockTable::check(const void* pointer) const {
  const std::lock_guard lock(mutex_);
  return blocks_.count(reinterpret_cast<uintptr_t>(pointer)) ? success() : unknown(pointer);
}

uint64_t BlockTable::blocks() const {
  const std::lock_guard lock(mutex_);
  return blocks_.size();
}

uint64_t BlockTable::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

}  // namespace fsccl
