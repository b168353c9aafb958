// Addresses that are arena memory although they lie outside of the arena's mapping: memory of the
// caller whose pages were exchanged for pages of an arena (pool/host/import.h). The ranges are
// sorted and disjoint. Readers take no lock. A read counts if the version is even and the same
// before and after it; otherwise the reader reads again. A reader that sees a new value also sees
// the odd version that was stored before it, because entries are stored with release and loaded
// with acquire.
#pragma once
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace fsccl {

class AliasTable {
 public:
  static constexpr size_t kCapacity = 1024;

  // Notes that [address, address + bytes) is [offset, offset + bytes) of the arena. Returns false
  // if the table is full. Ranges never overlap.
  bool add(uint64_t address, uint64_t bytes, uint32_t arena, uint64_t offset) {
    const std::lock_guard lock(mutex_);
    const size_t count = count_.load(std::memory_order_relaxed), at = first_above(address, count);
    if (count == kCapacity) return false;
    begin_change();
    for (size_t i = count; i > at; i--) copy(entries_[i], entries_[i - 1]);
    set(entries_[at].begin, address);
    set(entries_[at].end, address + bytes);
    set(entries_[at].offset, offset);
    set(entries_[at].arena, arena);
    // This store pairs with the loads of the count in find().
    count_.store(count + 1, std::memory_order_release);
    end_change();
    return true;
  }
  void remove(uint64_t address) {
    const std::lock_guard lock(mutex_);
    const size_t count = count_.load(std::memory_order_relaxed),
                 after = first_above(address, count);
    if (after == 0 || get(entries_[after - 1].begin) != address) return;
    begin_change();
    for (size_t i = after; i < count; i++) copy(entries_[i - 1], entries_[i]);
    // This store pairs with the loads of the count in find().
    count_.store(count - 1, std::memory_order_release);
    end_change();
  }

  // Returns true if all of [address, address + bytes) lies in one range.
  bool find(uint64_t address, uint64_t bytes, uint32_t* arena, uint64_t* offset) const {
    // The loads of the count pair with the stores in add() and remove(), that of the version with
    // end_change().
    if (count_.load(std::memory_order_acquire) == 0) return false;
    while (true) {
      const uint64_t version = version_.load(std::memory_order_acquire);
      if (version % 2) continue;
      const size_t after = first_above(address, count_.load(std::memory_order_acquire));
      bool found = false;
      if (after > 0) {
        const Entry& entry = entries_[after - 1];
        const uint64_t begin = get(entry.begin), end = get(entry.end);
        found = address < end && bytes <= end - address;
        *arena = get(entry.arena);
        *offset = get(entry.offset) + (address - begin);
      }
      if (version_.load(std::memory_order_relaxed) == version) return found;
    }
  }

 private:
  struct Entry {
    std::atomic<uint64_t> begin{0}, end{0}, offset{0};
    std::atomic<uint32_t> arena{0};
  };
  template <class T>
  static T get(const std::atomic<T>& value) {
    // This load pairs with the store in set().
    return value.load(std::memory_order_acquire);
  }
  template <class T>
  static void set(std::atomic<T>& value, T to) {
    // This store pairs with the load in get(): a reader that sees a new value sees that a change
    // has begun.
    value.store(to, std::memory_order_release);
  }
  static void copy(Entry& to, const Entry& from) {
    set(to.begin, get(from.begin));
    set(to.end, get(from.end));
    set(to.offset, get(from.offset));
    set(to.arena, get(from.arena));
  }
  // Returns the index of the first range that begins above the address.
  size_t first_above(uint64_t address, size_t count) const {
    size_t low = 0;
    while (low < count) {
      const size_t middle = (low + count) / 2;
      if (get(entries_[middle].begin) > address)
        count = middle;
      else
        low = middle + 1;
    }
    return low;
  }
  void begin_change() { version_.fetch_add(1, std::memory_order_relaxed); }
  // The addition pairs with the load of the version in find().
  void end_change() { version_.fetch_add(1, std::memory_order_release); }

  std::mutex mutex_;
  std::atomic<uint64_t> version_{0};
  std::atomic<size_t> count_{0};
  std::array<Entry, kCapacity> entries_;
};

}  // namespace fsccl
