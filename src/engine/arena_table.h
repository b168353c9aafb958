// The arenas that this rank has mapped. The table turns the address of a buffer into (arena,
// offset), which means the same to every rank that maps the arena. Reading is lock-free, because
// every operation looks its buffers up. Arenas are added and removed when pools are made and
// destroyed.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "base/status.h"
#include "engine/alias_table.h"

namespace fsccl {

// The place of a buffer, in the form in which a signal carries it.
struct Location {
  uint64_t address = 0;
  uint32_t arena = 0;
};
inline constexpr uint32_t kNowhere = 0;
inline constexpr uint32_t kPrivate = 1;  // the address is one of its rank's process
inline constexpr uint32_t kFirstArena = 16;

class ArenaTable {
 public:
  static constexpr size_t kCapacity = 64;

  // Adds an arena. `members` are the ranks of the job that map it, ascending.
  Status add(uint32_t id, std::byte* base, uint64_t bytes, std::vector<int> members) {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_)
      if (entry.id.load(std::memory_order_relaxed) == 0) {
        entry.base = base;
        entry.bytes = bytes;
        entry.members = std::move(members);
        // The two stores pair with the loads in locate() and resolve(): a reader that sees the id
        // sees its entry.
        entry.id.store(id, std::memory_order_release);
        if (used_.load(std::memory_order_relaxed) <
            static_cast<size_t>(&entry - entries_.data()) + 1)
          used_.store(static_cast<size_t>(&entry - entries_.data()) + 1, std::memory_order_release);
        return success();
      }
    return full();
  }
  // Returns the error of add() if the table is full now.
  Status check_room() const { return has(0) ? success() : full(); }
  void remove(uint32_t id) {
    const std::lock_guard lock(mutex_);
    for (Entry& entry : entries_)
      if (entry.id.load(std::memory_order_relaxed) == id)
        // This store pairs with the loads in locate() and resolve().
        entry.id.store(0, std::memory_order_release);
    removals_.fetch_add(1, std::memory_order_relaxed);
  }
  // Returns how many arenas were removed. An answer about an id may be kept until this changes,
  // because the id of an arena that was removed may be given again.
  uint64_t removals() const { return removals_.load(std::memory_order_relaxed); }
  bool has(uint32_t id) const {
    const std::lock_guard lock(mutex_);
    return std::any_of(entries_.begin(), entries_.end(), [id](const Entry& entry) {
      return entry.id.load(std::memory_order_relaxed) == id;
    });
  }

  // Notes that [pointer, pointer + bytes), outside of the arena's mapping, is its memory at
  // `location`.
  Status add_alias(const void* pointer, uint64_t bytes, const Location& location) {
    if (aliases_.add(reinterpret_cast<uint64_t>(pointer), bytes, location.arena, location.address))
      return success();
    return fail(FSCCL_ERR_LIMIT, "more than {} imports at once: import fewer, larger ranges",
                AliasTable::kCapacity);
  }
  void remove_alias(const void* pointer) { aliases_.remove(reinterpret_cast<uint64_t>(pointer)); }

  // Returns true if all of [pointer, pointer + bytes) lies in one arena, or in one alias.
  bool locate(const void* pointer, uint64_t bytes, Location* location) const {
    const auto* p = static_cast<const std::byte*>(pointer);
    // The two loads pair with the stores in add().
    for (size_t i = 0, n = used_.load(std::memory_order_acquire); i < n; i++) {
      const Entry& entry = entries_[i];
      const uint32_t id = entry.id.load(std::memory_order_acquire);
      if (id == 0 || p < entry.base || p >= entry.base + entry.bytes ||
          bytes > static_cast<uint64_t>(entry.base + entry.bytes - p))
        continue;
      *location = {static_cast<uint64_t>(p - entry.base), id};
      return true;
    }
    return aliases_.find(reinterpret_cast<uint64_t>(pointer), bytes, &location->arena,
                         &location->address);
  }
  // Returns true if all of `ranks` map the arena.
  bool reaches(uint32_t id, const std::vector<int>& ranks) const {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : entries_)
      if (entry.id.load(std::memory_order_relaxed) == id)
        return std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
          return std::binary_search(entry.members.begin(), entry.members.end(), rank);
        });
    return false;
  }
  // Returns the address of a location in this process, or null if it does not lie completely in an
  // arena of this rank. A peer's numbers are not trusted.
  std::byte* resolve(const Location& location, uint64_t bytes) const {
    // The two loads pair with the stores in add().
    for (size_t i = 0, n = used_.load(std::memory_order_acquire); i < n; i++) {
      const Entry& entry = entries_[i];
      if (entry.id.load(std::memory_order_acquire) != location.arena) continue;
      if (location.address > entry.bytes || bytes > entry.bytes - location.address) return nullptr;
      return entry.base + location.address;
    }
    return nullptr;
  }

 private:
  static Status full() {
    return fail(FSCCL_ERR_LIMIT, "more than {} pools at once; destroy some", kCapacity);
  }

  struct Entry {
    std::atomic<uint32_t> id{0};
    std::byte* base = nullptr;
    uint64_t bytes = 0;
    std::vector<int> members;
  };
  mutable std::mutex mutex_;
  std::atomic<size_t> used_{0};
  std::atomic<uint64_t> removals_{0};
  std::array<Entry, kCapacity> entries_;
  AliasTable aliases_;
};

}  // namespace fsccl
