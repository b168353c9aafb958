// The record of a pool's memory: counters for each kind, unit and stream; the live bytes; and, if
// asked for, the last events in a ring that was made with the journal, and a log
// (allocation_log.h). The pool reports every slot and block after it was granted and before its
// bytes can be granted anew, so that events of one address are in order.
//
// One thread at a time, that of the pool's program, names, takes, gives back and refuses slots, and
// calls step(). Any thread may call the other functions; they take the lock themselves, or read
// atomic members. While steps repeat, the program takes no lock: it adds to one word of the slot
// (LiveSlot::events), and a reader of figures counts the additions since the last count. Peaks need
// no counting then, because everything that a repeated step holds at once was held before. Only
// after blocks were taken, or after an event that was not part of a repeated step, the program
// looks at the peak until a whole step is over. The program takes the lock while events or a log
// are kept, or while somebody asks for figures.
#pragma once
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <vector>

#include "allocators/placement/allocation_log.h"
#include "allocators/placement/node_memory.h"
#include "base/status.h"

namespace fsccl {

enum class UseKind : uint8_t { kParameters, kGradients, kShards, kBlock, kImport, kCodec };
const char* name_of(UseKind kind);

struct MemoryUse {
  UseKind kind{};
  std::string unit;  // empty: of no unit
  uint64_t stream = 0;
  uint64_t live = 0, peak = 0;  // bytes
  uint64_t allocations = 0, frees = 0;
  uint64_t allocated = 0;  // bytes of all allocations
};

// A pool has three parts: shared slots, own slots, and blocks.
inline constexpr size_t kPoolParts = 3, kSlotParts = 2;

enum class JournalAction : uint8_t { kTaken, kGivenBack, kRefused, kGrown, kReleased, kStep };
struct JournalEvent {
  int64_t time_us = 0;  // since 1970
  uint64_t address = 0, bytes = 0;
  uint64_t requested = 0;  // taken: requested bytes; refused: free bytes
  uint64_t stream = 0;
  uint32_t use = 0;  // index of the use; for growth and release, number of the part
  JournalAction action{};
};
struct LiveMemory {
  uint64_t address = 0, bytes = 0, requested = 0;
  uint32_t use = 0;
};
struct PoolPart {
  uint64_t address = 0, bytes = 0;  // `bytes` up to the last byte that exists
};

// The whole journal at one moment.
struct JournalCopy {
  std::vector<MemoryUse> uses;
  std::vector<LiveMemory> live;  // by address
  std::array<PoolPart, kPoolParts> parts;
  std::vector<JournalEvent> events;
  uint64_t lost = 0;  // number of earlier events
  int64_t time_us = 0;
};

class Journal {
 public:
  struct Owner {  // the owner of a block
    UseKind kind = UseKind::kBlock;
    std::string_view unit{};
    uint64_t stream = 0;
  };

  // `history` is the number of events that are kept. An empty `log_path` means no log.
  static Result<std::unique_ptr<Journal>> open(size_t history, const std::string& log_path);

  class Slot;
  // name_slot() says what a key of a unit is for, before the unit takes a slot with it.
  // forget_slot() undoes that when the key holds no slot; the reference that slot() returns is
  // valid until then. `part` is the pool's part in which a slot lies. A key can have one slot in
  // each part.
  void name_slot(uint64_t key, UseKind kind, const std::string& unit);
  void forget_slot(uint64_t key);
  Slot& slot(uint64_t key);  // belongs to no unit if the key was not named
  void slot_taken(Slot& slot, size_t part, uint64_t address, uint64_t bytes, uint64_t requested);
  void slot_given_back(Slot& slot, size_t part);
  void slot_refused(uint64_t key, uint64_t bytes, uint64_t free);
  // The same for a step that repeats another one, and so holds at once nothing that was not held at
  // once before. `live` has the bytes of slots in that part after this event.
  void slot_taken_again(Slot& slot, size_t part, uint64_t address, uint64_t bytes,
                        uint64_t requested, uint64_t live);
  void slot_given_back_again(Slot& slot, size_t part, uint64_t live);

  void block_taken(const Owner& owner, uint64_t address, uint64_t bytes, uint64_t requested);
  void block_given_back(uint64_t address, uint64_t stream = 0);
  void block_refused(const Owner& owner, uint64_t bytes, uint64_t free);

  // Memory of the system is added, or given back, at the end of the part.
  void grown(size_t part, uint64_t part_address, uint64_t bytes);
  void released(size_t part, uint64_t bytes);
  // Memory of the system is added or given back at `offset`. The part ends at `reach` afterwards.
  void changed(size_t part, uint64_t part_address, uint64_t reach, JournalAction action,
               uint64_t offset, uint64_t bytes);
  void step();

  uint64_t live_in_slots() const {
    return slots_live_[0].load(std::memory_order_relaxed) +
           slots_live_[1].load(std::memory_order_relaxed);
  }
  uint64_t live_peak() const;  // the most bytes live at once
  std::vector<MemoryUse> uses() const;
  JournalCopy copy() const;

 private:
  // A slot of a key in one part. The program writes the atomic members without the lock, `events`
  // last.
  struct LiveSlot {
    std::atomic<uint64_t> events{0};  // takes and give-backs together: odd while it is held
    std::atomic<uint64_t> address{0};
    uint64_t bytes = 0, requested = 0;
    uint64_t counted = 0;  // events that the use's figures include
    bool alone = false;    // no slot of its use lies in another part
  };
  // The use of slots, or of blocks.
  struct Use {
    UseKind kind{};
    std::string unit;
    uint64_t stream = 0;
    uint64_t live = 0, peak = 0, allocations = 0, frees = 0, allocated = 0;
    std::vector<Slot*> slots;
    uint32_t parts = 0;  // parts in which slots were taken, a bit each
  };

 public:
  class Slot {
    friend class Journal;
    uint32_t use_number = 0;
    Use* use = nullptr;
    std::array<LiveSlot, kSlotParts> live;
  };

 private:
  Journal() = default;
  // The callers of these hold the lock. Only note_peak() and watched() are also called without it;
  // they use atomic or constant members only.
  uint32_t use_of(const Owner& owner, bool slots);
  void name(Slot& slot, UseKind kind, const std::string& unit);
  void leave(Slot& slot);
  void use_in(Use& use, size_t part);
  Slot& named(uint64_t key);
  void count(Use& use, LiveSlot& slot, uint64_t events) const;
  void count(Use& use) const;
  std::vector<LiveMemory> count_all() const;  // returns the slots that are held
  void take(Use& use, std::atomic<uint64_t>& live, const LiveMemory& memory);
  void give_back(Use& use, std::atomic<uint64_t>& live, const LiveMemory& memory, uint64_t stream);
  void note_peak();
  void ask_for_peak() { asked_.fetch_or(kPeakNow | kPeakNext, std::memory_order_relaxed); }
  std::vector<MemoryUse> list_uses() const;
  void refuse(uint32_t use, uint64_t bytes, uint64_t free);
  void note(JournalAction action, const LiveMemory& memory, uint64_t stream, int64_t time_us);
  bool watched() const { return capacity_ || log_; }
  int64_t time_us() const;

  mutable std::mutex mutex_;
  // Further duties of the program: look at the peak, in this step and in the next one; and take the
  // lock, once for each reader that asks.
  static constexpr uint32_t kPeakNow = 1, kPeakNext = 2, kLock = 4;
  mutable std::atomic<uint32_t> asked_{0};
  // Live bytes: of slots in each part, and of blocks. One thread at a time writes each of these.
  std::array<std::atomic<uint64_t>, kSlotParts> slots_live_{};
  std::atomic<uint64_t> blocks_live_{0};
  std::atomic<uint64_t> live_peak_{0};
  mutable std::deque<Use> uses_;
  struct Earlier {  // compares keys, also keys that only refer to a name
    using is_transparent = void;
    using Key = std::tuple<bool, UseKind, std::string_view, uint64_t>;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
  };
  // The first member of a key is true for a use of slots.
  std::map<std::tuple<bool, UseKind, std::string, uint64_t>, uint32_t, Earlier> use_numbers_;
  mutable std::unordered_map<uint64_t, Slot> slots_;
  NodeMemory nodes_;
  std::pmr::unordered_map<uint64_t, LiveMemory> blocks_{nodes_.get()};
  std::array<PoolPart, kPoolParts> parts_{};

  std::unique_ptr<JournalEvent[]> ring_;
  size_t capacity_ = 0;
  uint64_t events_ = 0;      // number of events that were ever noted
  int64_t clock_ahead_ = 0;  // microseconds since 1970 when the monotonic clock is at 0
  std::unique_ptr<AllocationLog> log_;
};

// A use with bytes in two parts is counted at once, because its peak may be new.
inline void Journal::slot_taken_again(Slot& slot, size_t part, uint64_t address, uint64_t bytes,
                                      uint64_t requested, uint64_t live) {
  LiveSlot& of = slot.live[part];
  const uint32_t asked = asked_.load(std::memory_order_relaxed);
  if (asked >= kLock || of.requested != requested || !of.alone) [[unlikely]]
    return slot_taken(slot, part, address, bytes, requested);
  // These two stores pair with the loads in count_all().
  of.address.store(address, std::memory_order_release);
  of.events.store(of.events.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  slots_live_[part].store(live, std::memory_order_relaxed);
  if (asked) [[unlikely]]
    note_peak();
}

inline void Journal::slot_given_back_again(Slot& slot, size_t part, uint64_t live) {
  LiveSlot& of = slot.live[part];
  if (asked_.load(std::memory_order_relaxed) >= kLock) [[unlikely]]
    return slot_given_back(slot, part);
  // This store pairs with the load of `events` in count_all().
  of.events.store(of.events.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  slots_live_[part].store(live, std::memory_order_relaxed);
}

}  // namespace fsccl
