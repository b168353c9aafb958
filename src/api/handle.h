// Handles: small numbers that name objects. A handle holds its kind, the slot of a table and the slot's generation, so a NULL,
// destroyed or foreign one is seen without touching memory that may be gone. Looking one up is a bounds check and a compare; slots
// are never given back to the system.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include "base/fork.h"
#include "base/status.h"

namespace fsccl {

enum class HandleKind : uint8_t { comm = 0xC1, pool = 0xC2, unit = 0xC3, work = 0xC4, allocator = 0xC5 };
const char* kind_name(HandleKind kind);

// kind:8 | generation:24 | slot + 1:32
struct HandleBits {
  uint64_t bits;
  HandleKind kind() const { return static_cast<HandleKind>(bits >> 56); }
  uint32_t generation() const { return static_cast<uint32_t>(bits >> 32) & 0xffffff; }
  uint32_t slot() const { return static_cast<uint32_t>(bits) - 1; }
};

template <class T, HandleKind Kind, uint32_t Capacity>
class HandleTable {
 public:
  Result<uint64_t> add(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    uint32_t slot = used_;
    if (free_count_ > 0) {
      slot = free_[--free_count_];
    } else if (used_ == Capacity) {
      return fail(FSCCL_ERR_LIMIT, "more than {} {} handles at once: destroy some", Capacity, kind_name(Kind));
    } else {
      used_++;
    }
    slots_[slot].object.store(object.release(), std::memory_order_release);
    return uint64_t{static_cast<uint8_t>(Kind)} << 56 | uint64_t{slots_[slot].generation.load()} << 32 | (slot + 1);
  }
  // Null when the handle does not name a live object.
  T* find(uint64_t bits) const {
    const HandleBits handle{bits};
    if (handle.kind() != Kind || handle.slot() >= Capacity) return nullptr;
    const Slot& slot = slots_[handle.slot()];
    return slot.generation.load(std::memory_order_acquire) == handle.generation() ? slot.object.load(std::memory_order_acquire)
                                                                                  : nullptr;
  }
  // By slot and part of a generation (works name their communicator in few bits).
  T* at(uint32_t slot, uint32_t generation, uint32_t mask) const {
    if (slot >= Capacity || (slots_[slot].generation.load(std::memory_order_acquire) & mask) != generation) return nullptr;
    return slots_[slot].object.load(std::memory_order_acquire);
  }
  std::unique_ptr<T> take(uint64_t bits) {
    const std::lock_guard lock(mutex_);
    T* object = find(bits);
    if (!object) return nullptr;
    Slot& slot = slots_[HandleBits{bits}.slot()];
    slot.object.store(nullptr);
    slot.generation.store((slot.generation.load() + 1) & 0xffffff);
    free_[free_count_++] = HandleBits{bits}.slot();
    return std::unique_ptr<T>(object);
  }

 private:
  struct Slot {
    std::atomic<uint32_t> generation{1};
    std::atomic<T*> object{nullptr};
  };
  std::mutex mutex_;
  uint32_t used_ = 0, free_count_ = 0;
  std::array<uint32_t, Capacity> free_{};  // slots; to give one back takes no memory
  std::array<Slot, Capacity> slots_;
};

[[gnu::cold]] Status bad_handle(HandleKind wanted, uint64_t bits);

}  // namespace fsccl
