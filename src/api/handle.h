// Handles are small numbers that name objects. A handle holds its kind, the index of a slot in a
// table, and the slot's generation, so a NULL, destroyed or foreign handle is recognised without
// access to memory that may have been freed. Slots are never given back to the system.
//
// A caller that looks up a handle uses the object for as long as it keeps the reference: the object
// is pinned (base/pins.h), and the end of the handle waits until it is unpinned. A lookup with its
// release takes a few nanoseconds and writes nothing that other threads write.
//
// A slot is used again only after all others have been used, so a generation repeats only after
// 2^32 uses of one slot. A work has fewer bits for the generation; an old work may name another
// communicator only after 2^31 communicators.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "base/fork.h"
#include "base/pins.h"
#include "base/status.h"
#include "base/undo.h"
#include "base/wait.h"

namespace fsccl {

enum class HandleKind : uint8_t {
  comm = 0xC1,
  pool = 0xC2,
  unit = 0xC3,
  work = 0xC4,
  allocator = 0xC5,
  publisher = 0xC6,
  subscriber = 0xC7
};
const char* kind_name(HandleKind kind);

// The bits of a handle are kind:8 | generation:32 | slot + 1:24. A work has another form, and is
// below 2^63 (work.cpp).
struct HandleBits {
  explicit HandleBits(uint64_t bits)
      : kind(static_cast<HandleKind>(bits >> 56)),
        generation(static_cast<uint32_t>(bits >> 24)),
        slot((static_cast<uint32_t>(bits) & 0xffffff) - 1) {}
  HandleKind kind;
  uint32_t generation, slot;
};

// The use of an object by a thread. The object is not freed meanwhile. It may be of no object.
class Use {
 public:
  Use() = default;
  // `what` is pinned; where the thread has no word left for that, it is counted among `users`.
  Use(const void* what, std::atomic<uint32_t>& users) noexcept {
    if (Pins::Word* const word = Pins::set(what)) [[likely]] {
      bits_ = reinterpret_cast<uintptr_t>(word);
    } else {
      bits_ = reinterpret_cast<uintptr_t>(&users) | kCounted;
      users.fetch_add(1, std::memory_order_seq_cst);
    }
  }
  Use(Use&& other) noexcept : bits_(std::exchange(other.bits_, 0)) {}
  Use& operator=(Use&& other) noexcept {
    std::swap(bits_, other.bits_);
    return *this;
  }
  ~Use() {
    if (bits_ & kCounted) [[unlikely]]
      // This pairs with the load of `users` in unused_soon(): the thread that ends the object sees
      // what was done with it.
      reinterpret_cast<std::atomic<uint32_t>*>(bits_ - kCounted)
          ->fetch_sub(1, std::memory_order_release);
    else if (bits_)
      Pins::clear(reinterpret_cast<Pins::Word*>(bits_));
  }

 private:
  static constexpr uintptr_t kCounted = 1;  // the address is that of `users`, not that of a word

  uintptr_t bits_ = 0;
};

// A reference to an object, which is not freed while the reference lives. It may be null.
template <class T>
class Ref {
 public:
  Ref() = default;
  Ref(T* object, Use use) : object_(object), use_(std::move(use)) {}
  Ref(Ref&& other) noexcept : Ref(other.object_, std::move(other)) {}
  // Refers to an object that lives as long as the object of `owner`, whose use it takes over.
  template <class U>
  Ref(T* object, Ref<U>&& owner) : object_(object), use_(std::move(owner.use_)) {
    owner.object_ = nullptr;
  }
  Ref& operator=(Ref&& other) noexcept {
    std::swap(object_, other.object_);
    use_ = std::move(other.use_);
    return *this;
  }
  explicit operator bool() const { return object_ != nullptr; }
  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }

 private:
  template <class U>
  friend class Ref;

  T* object_ = nullptr;
  Use use_;
};

template <class T, HandleKind Kind, uint32_t Capacity>
class HandleTable {
  static constexpr uint64_t kOpen = 1;  // in a slot's state: its object can be found
  // how long a slot is closed to wait for calls that are short
  static constexpr int64_t kForUsersNs = 200'000;

 public:
  static constexpr uint32_t kCapacity = Capacity;
  // `owner` is a handle of this table. A use of the object then counts as a use of its owner, which
  // ends the object before itself.
  Result<uint64_t> add(std::unique_ptr<T> object, uint64_t owner = 0) {
    Pins::prepare();
    const std::lock_guard lock(mutex_);
    uint32_t index = used_;
    if (used_ < Capacity) {
      used_++;
    } else if (free_count_ > 0) {
      index = free_[first_free_];
      first_free_ = (first_free_ + 1) % Capacity;
      free_count_--;
    } else {
      return fail(FSCCL_ERR_LIMIT, "more than {} {} handles at once: destroy some", Capacity,
                  kind_name(Kind));
    }
    Cell& slot = slots_[index];
    slot.owner.store(owner ? HandleBits(owner).slot : index, std::memory_order_relaxed);
    slot.object.store(object.release(), std::memory_order_relaxed);
    const uint64_t state = slot.state.load(std::memory_order_relaxed) + 2;
    // This store pairs with the loads of the state in look_up() and is_closed(): a thread that sees
    // the slot open sees its object.
    slot.state.store(state | kOpen, std::memory_order_release);
    return uint64_t{static_cast<uint8_t>(Kind)} << 56 | (state >> 1 & 0xffffffff) << 24 |
           (index + 1);
  }
  // Returns null if the handle does not name a live object.
  Ref<T> find(uint64_t bits) {
    const HandleBits handle(bits);
    if (handle.kind != Kind) [[unlikely]]
      return {};
    return at(handle.slot, handle.generation);
  }
  // Looks up by slot and generation, or by the generation modulo `Generations` if that is given
  // (works have few bits to name their communicator).
  template <uint32_t Generations = 0>
  Ref<T> at(uint32_t index, uint32_t generation) {
    if (index >= Capacity) [[unlikely]]
      return {};
    bool closed = false;
    Ref<T> found = look_up<Generations>(index, generation, &closed);
    if (closed) [[unlikely]]
      return at_when_open<Generations>(index, generation);
    return found;
  }
  // Returns the object of a handle whose owner the caller already uses.
  T* owned(uint64_t bits) const {
    // The handle came from add(), whose stores this load pairs with.
    return slots_[HandleBits(bits).slot].object.load(std::memory_order_acquire);
  }
  // Ends a handle: waits until no thread uses the object, and then asks `may_end` whether it may
  // end, before anybody can find it again. While a user stays, such as a call that blocks, this
  // waits until the deadline, and neither that user nor others are disturbed.
  template <class MayEnd>
  Result<std::unique_ptr<T>> end(uint64_t bits, Deadline deadline, const MayEnd& may_end) {
    Cell& slot = slots_[HandleBits(bits).slot];
    if (Pins::held_here(&slot))
      return fail(FSCCL_ERR_INVALID_STATE,
                  "called from a function of the program that the library calls for this {}: "
                  "destroy it when that has returned",
                  kind_name(Kind));
    Result<std::unique_ptr<T>> ended = std::unique_ptr<T>();
    const auto decided = [&] {
      if (!try_close(bits)) {
        // by another thread, which ends the object or opens the slot again
        if (is_closed(bits)) return false;
        ended = fail(FSCCL_ERR_INVALID_HANDLE,
                     "the {} handle {:#x} was destroyed by another thread", kind_name(Kind), bits);
        return true;
      }
      Undo still_there([&] { reopen(slot); });  // also where `may_end` finds no memory
      if (!unused_soon(slot)) return false;
      Status status = may_end(*slot.object.load(std::memory_order_relaxed));
      if (status.ok()) {
        ended = take(bits);
        still_there.keep();
      } else {
        ended = std::move(status);
      }
      return true;
    };
    if (wait_until(decided, deadline, kNothingBreaks, Naps(0, 50'000, 5'000'000)) == WaitEnd::held)
      return ended;
    return fail(FSCCL_ERR_INVALID_STATE,
                "the {} is still used by a call of another thread, which has not returned: end "
                "that first (fsccl_comm_abort ends "
                "calls that wait for other ranks), and destroy it again",
                kind_name(Kind));
  }
  // Ends a handle at once, for an object that nobody can use or whose owner is being ended.
  std::unique_ptr<T> take(uint64_t bits) {
    const HandleBits handle(bits);
    if (handle.kind != Kind || handle.slot >= Capacity) return nullptr;
    const std::lock_guard lock(mutex_);
    Cell& slot = slots_[handle.slot];
    const uint64_t state = slot.state.load(std::memory_order_relaxed);
    if (static_cast<uint32_t>(state >> 1) != handle.generation) return nullptr;
    T* const object = slot.object.exchange(nullptr, std::memory_order_relaxed);
    if (!object) return nullptr;
    slot.state.store(state & ~kOpen, std::memory_order_seq_cst);
    free_[(first_free_ + free_count_++) % Capacity] = handle.slot;
    return std::unique_ptr<T>(object);
  }

 private:
  struct Cell {
    std::atomic<uint64_t> state{0};  // generation << 1 | kOpen
    std::atomic<T*> object{nullptr};
    std::atomic<uint32_t> owner{0};  // the object whose users count
    std::atomic<uint32_t> users{0};  // that have no word of their own
  };

  // Returns the object, or null if there is none or if the slot is closed, which *closed says.
  template <uint32_t Generations>
  Ref<T> look_up(uint32_t index, uint32_t generation, bool* closed) {
    Cell& slot = slots_[index];
    Cell& owner = slots_[slot.owner.load(std::memory_order_relaxed)];
    Use use(&owner, owner.users);
    // This comes after the announcement of the use, and pairs with the stores of try_close().
    const uint64_t state = slot.state.load(std::memory_order_seq_cst);
    const bool open = state & kOpen && owner.state.load(std::memory_order_seq_cst) & kOpen;
    T* const object = slot.object.load(std::memory_order_relaxed);
    const auto whole = static_cast<uint32_t>(state >> 1);
    const bool meant = object && (Generations ? whole % Generations : whole) == generation;
    if (meant && open) [[likely]]
      return {object, std::move(use)};
    *closed = meant;
    return {};
  }
  // Another thread has closed the slot to end the object: it ends the object, or opens the slot
  // again, within kForUsersNs.
  template <uint32_t Generations>
  [[gnu::cold, gnu::noinline]] Ref<T> at_when_open(uint32_t index, uint32_t generation) {
    Ref<T> found;
    const auto open = [&] {
      bool closed = false;
      found = look_up<Generations>(index, generation, &closed);
      return !closed;
    };
    wait_until(open, Deadline::never(), kNothingBreaks, Yields());
    return found;
  }
  bool is_closed(uint64_t bits) const {
    const Cell& slot = slots_[HandleBits(bits).slot];
    // This load pairs with the store of the state in add(), and with try_close().
    const uint64_t state = slot.state.load(std::memory_order_acquire);
    return static_cast<uint32_t>(state >> 1) == HandleBits(bits).generation && !(state & kOpen) &&
           slot.object.load(std::memory_order_relaxed);
  }
  bool try_close(uint64_t bits) {
    Cell& slot = slots_[HandleBits(bits).slot];
    uint64_t open = slot.state.load(std::memory_order_relaxed) | kOpen;
    if (static_cast<uint32_t>(open >> 1) != HandleBits(bits).generation) return false;
    return slot.state.compare_exchange_strong(open, open & ~kOpen, std::memory_order_seq_cst);
  }
  void reopen(Cell& slot) { slot.state.fetch_or(kOpen, std::memory_order_seq_cst); }
  // Returns whether the object of a closed slot is unused, now or within kForUsersNs.
  bool unused_soon(const Cell& slot) const {
    Pins::fence_all_threads();
    const auto unused = [&] {
      return !Pins::held(&slot) && slot.users.load(std::memory_order_seq_cst) == 0;
    };
    return wait_until(unused, Deadline::at(now_ns() + kForUsersNs), kNothingBreaks, Yields()) ==
           WaitEnd::held;
  }

  std::mutex mutex_;
  uint32_t used_ = 0, first_free_ = 0, free_count_ = 0;
  std::array<uint32_t, Capacity> free_{};  // slots, a ring; to give one back takes no memory
  std::array<Cell, Capacity> slots_;
};

[[gnu::cold]] Status bad_handle(HandleKind wanted, uint64_t bits);

// The object behind a handle, or the error for the caller.
template <class T, HandleKind Kind, uint32_t Capacity>
Result<Ref<T>> object_of(HandleTable<T, Kind, Capacity>& table, const void* handle) {
  const auto bits = reinterpret_cast<uint64_t>(handle);
  Ref<T> object = forked() ? Ref<T>() : table.find(bits);
  if (!object) [[unlikely]]
    return bad_handle(Kind, bits);
  return object;
}

}  // namespace fsccl
