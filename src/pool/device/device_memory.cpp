#include "pool/device/device_memory.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace fsccl {
namespace {

constexpr size_t kJournalPart[] = {1, 2};  // each rank's own slots, and blocks
constexpr const char* kPartNames[] = {"slots", "blocks"};

}  // namespace

Status DeviceMemory::check(const Result<Source>& source, const cuda::Device& device) {
  if (!source.ok()) return source.status().clone();
  if (!source.value()) return success();
  FSCCL_ASSIGN(const EndSource* end, source.value()->end());
  if (source.value()->memory() == FSCCL_MEMORY_CUDA &&
      source.value()->device() == device.ordinal() && end->is_system())
    return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "a pool on device {} stands on adaptors over fsccl_allocator_cuda({}), whose "
              "segments other processes can map: give "
              "it such a source, or none",
              device.ordinal(), device.ordinal());
}

Result<std::unique_ptr<DeviceMemory>> DeviceMemory::reserve(const cuda::Device& device,
                                                            const Limits& limits, std::string pool,
                                                            int rank) {
  std::unique_ptr<DeviceMemory> memory(new DeviceMemory(limits, std::move(pool), rank));
  FSCCL_ASSIGN(memory->arenas_[0], DeviceArena::reserve(device, limits.slots));
  FSCCL_ASSIGN(memory->arenas_[1], DeviceArena::reserve(device, limits.all));
  return memory;
}

DeviceMemory::~DeviceMemory() {
  for (const DevicePart part : {DevicePart::slots, DevicePart::blocks})
    if (const uint64_t bytes = this->bytes(part)) tell_source(part, 0, bytes);
}

void DeviceMemory::leak() {
  for (std::optional<DeviceArena>& arena : arenas_) arena->leak();
  for (std::atomic<uint64_t>& bytes : bytes_) bytes = 0;
}

Status DeviceMemory::refuse(uint64_t bytes) const {
  return fail(FSCCL_ERR_OUT_OF_MEMORY,
              "pool '{}' of rank {} holds {} bytes of the GPU and needs {} more, beyond its limit "
              "of {}: raise FSCCL_POOL_LIMIT or "
              "limit_bytes to at least {}, free blocks, or reshard more units. It holds: {}",
              pool_, rank_, held(), bytes, limits_.all, held() + bytes,
              relief_.holders ? relief_.holders() : "");
}

Status DeviceMemory::grow(DevicePart part, uint64_t bytes, bool* asked) {
  for (;; *asked = true) {
    const uint64_t soft =
        limits_.soft && !*asked ? std::min(limits_.soft, limits_.all) : limits_.all;
    const uint64_t held = this->held(), over = held + bytes > soft ? held + bytes - soft : 0;
    Status status = over ? refuse(bytes) : extend(part, bytes);
    if (status.ok() || *asked || !is_shortage(status.code())) return status;
    if (relief_.trim) relief_.trim();
    if (relief_.ask) relief_.ask(over ? over : bytes);
    if (relief_.trim) relief_.trim();
  }
}

struct DeviceMemory::Growth final : PoolGrowth {
  Growth(DeviceMemory& of_memory, DevicePart of_part) : memory(of_memory), part(of_part) {}
  Result<void*> reserve(uint64_t bytes) override {
    const std::lock_guard lock(memory.mutex_);
    const cuda::CUdeviceptr place = memory.base(part) + memory.bytes(part);
    FSCCL_TRY(memory.extend_now(part, bytes));
    return reinterpret_cast<void*>(place);
  }
  DeviceMemory& memory;
  DevicePart part;
};

Status DeviceMemory::extend(DevicePart part, uint64_t bytes) {
  Growth growth(*this, part);
  if (!source_) return growth.reserve(bytes).take_status();
  const Result<void*> result = source_->allocate(
      {.bytes = bytes, .alignment = arena(part).granularity(), .growth = &growth});
  if (result.ok()) return success();
  return fail(result.status().code(), "pool '{}' of rank {} asked its source for {} bytes more: {}",
              pool_, rank_, bytes, result.status().text());
}

// Extends the part. The limit also counts memory that other threads have taken meanwhile.
Status DeviceMemory::extend_now(DevicePart part, uint64_t bytes) {
  if (held() + bytes > limits_.all || bytes > of(part).address_bytes() - of(part).bytes())
    return refuse(bytes);
  FSCCL_TRY(of(part).grow(bytes));
  const auto index = static_cast<size_t>(part);
  // This store pairs with the load in bytes().
  bytes_[index].store(of(part).bytes(), std::memory_order_release);
  growths_++;
  if (journal_) journal_->grown(kJournalPart[index], base(part), bytes);
  FSCCL_LOG(kInfo, "pool '{}' grows by {} bytes of the GPU for {} to {}", pool_, bytes,
            kPartNames[index], of(part).bytes());
  return success();
}

uint64_t DeviceMemory::kept_by_shrink(DevicePart part, uint64_t bytes) const {
  const std::lock_guard lock(mutex_);
  const DeviceArena& arena = this->arena(part);
  uint64_t end = arena.bytes();
  for (size_t s = arena.segments(); s > 0 && end - arena.segment_bytes(s - 1) >= bytes; s--)
    end -= arena.segment_bytes(s - 1);
  return end;
}

uint64_t DeviceMemory::shrink(DevicePart part, uint64_t bytes) {
  std::unique_lock lock(mutex_);
  const uint64_t released = of(part).shrink(bytes), left = of(part).bytes();
  // This store pairs with the load in bytes().
  bytes_[static_cast<size_t>(part)].store(left, std::memory_order_release);
  given_back_ += released;
  if (released && journal_) journal_->released(kJournalPart[static_cast<size_t>(part)], released);
  lock.unlock();
  if (released) tell_source(part, left, released);
  return released;
}

void DeviceMemory::tell_source(DevicePart part, uint64_t from, uint64_t bytes) {
  if (!source_) return;
  Growth growth(*this, part);
  const Status status = source_->deallocate(
      reinterpret_cast<void*>(base(part) + from),
      {.bytes = bytes, .alignment = arena(part).granularity(), .growth = &growth});
  if (!status.ok())
    FSCCL_LOG(kWarn, "pool '{}': its source does not take {} bytes back: {}", pool_, bytes,
              status.text());
}

}  // namespace fsccl
