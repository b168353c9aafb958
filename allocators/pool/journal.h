// What happened to a pool's memory, and by whom: counters for each kind, unit and stream; what is live now; if it was asked for,
// the last events in a ring that was made with the journal, and a log (allocation_log.h). The pool reports every slot and block
// after it was granted and before its bytes can be granted anew, so that events of one address are in order.
//
// A slot's owner is found by the key that the unit gave a name to; to take and give back a slot then adds to counters, without a
// lock: nothing is allocated, no time is read, no system call is made. Where events or a log are kept, there is a lock around both.
//
// Slots are named, taken and given back by one thread at a time, that of the pool's program; all else is for any thread. What the
// program has written is copied by version (version.h); while somebody copies, it takes the lock, so that nobody copies for ever.
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

#include "allocators/pool/allocation_log.h"
#include "allocators/pool/node_memory.h"
#include "allocators/pool/version.h"
#include "base/status.h"

namespace fsccl {

enum class UseKind : uint8_t { kParameters, kGradients, kShards, kBlock, kImport };
const char* name_of(UseKind kind);

struct MemoryUse {
  UseKind kind{};
  std::string unit;  // empty: no unit's
  uint64_t stream = 0;
  uint64_t live = 0, peak = 0;  // bytes
  uint64_t allocations = 0, frees = 0;
  uint64_t allocated = 0;  // bytes, in all
};

// Of a pool: shared slots, own slots, blocks.
inline constexpr size_t kPoolParts = 3;

enum class JournalAction : uint8_t { kTaken, kGivenBack, kRefused, kGrown, kReleased, kStep };
struct JournalEvent {
  int64_t time_us = 0;  // since 1970
  uint64_t address = 0, bytes = 0;
  uint64_t requested = 0;  // taken: of the bytes; refused: what was free
  uint64_t stream = 0;
  uint32_t use = 0;  // whose; grown, released: number of the part
  JournalAction action{};
};
struct LiveMemory {
  uint64_t address = 0, bytes = 0, requested = 0;
  uint32_t use = 0;
};
struct PoolPart {
  uint64_t address = 0, bytes = 0;  // from its beginning to the last that exist
};

// The whole journal at one moment.
struct JournalCopy {
  std::vector<MemoryUse> uses;
  std::vector<LiveMemory> live;  // by address
  std::array<PoolPart, kPoolParts> parts;
  std::vector<JournalEvent> events;
  uint64_t lost = 0;  // events before those
  int64_t time_us = 0;
};

class Journal {
 public:
  struct Owner {  // of a block
    UseKind kind = UseKind::kBlock;
    std::string_view unit{};
    uint64_t stream = 0;
  };

  // `history`: how many events are kept. `log_path`: empty for none.
  static Result<std::unique_ptr<Journal>> open(size_t history, const std::string& log_path);

  // A unit says what its key is for, before it takes a slot with it, and takes that back when it has none. `part` is the pool's
  // part that the slot lies in: a key can have one slot in each.
  void name_slot(uint64_t key, UseKind kind, const std::string& unit);
  void forget_slot(uint64_t key);
  void slot_taken(uint64_t key, size_t part, uint64_t address, uint64_t bytes, uint64_t requested);
  void slot_given_back(uint64_t key, size_t part);
  void slot_refused(uint64_t key, uint64_t bytes, uint64_t free);

  void block_taken(const Owner& owner, uint64_t address, uint64_t bytes, uint64_t requested);
  void block_given_back(uint64_t address, uint64_t stream = 0);
  void block_refused(const Owner& owner, uint64_t bytes, uint64_t free);

  // Memory of the system, at the end of what a part has.
  void grown(size_t part, uint64_t part_address, uint64_t bytes);
  void released(size_t part, uint64_t bytes);
  // Anywhere in it; afterwards it reaches so far.
  void changed(size_t part, uint64_t part_address, uint64_t reach, JournalAction action, uint64_t offset, uint64_t bytes);
  void step();

  uint64_t live_peak() const;  // the most bytes live at once
  std::vector<MemoryUse> uses() const;
  JournalCopy copy() const;

 private:
  // Of slots, or of blocks: what slots add to is the program's, what blocks add to is under the lock.
  struct Use {
    UseKind kind{};
    std::string unit;
    uint64_t stream = 0;
    Versioned live, peak, allocations, frees, allocated;
  };
  struct LiveSlot {
    Versioned address, bytes, requested;  // bytes 0: there is none
  };
  struct Named {
    uint32_t use_number = 0;
    Use* use = nullptr;
    std::array<LiveSlot, 2> live;  // in the shared part, in the own part
  };
  // The lock, for the program: taken where events are kept, and while somebody copies.
  class ProgramLock {
   public:
    explicit ProgramLock(Journal& journal) : lock_(journal.mutex_, std::defer_lock) {
      if (journal.program_locks_.load(std::memory_order_relaxed)) [[unlikely]]
        lock_.lock();
    }

   private:
    std::unique_lock<std::mutex> lock_;
  };
  template <class Read>
  void copy_slots(Read&& read) const;  // under the lock

  Journal() = default;
  uint32_t use_of(const Owner& owner, bool slots);
  Named& named(uint64_t key);
  using Live = Versioned;
  void take(Use& use, Live& live, const LiveMemory& memory);
  void give_back(Use& use, Live& live, const LiveMemory& memory, uint64_t stream);
  void note_peak();
  std::vector<MemoryUse> list_uses() const;
  void refuse(uint32_t use, uint64_t bytes, uint64_t free);
  void note(JournalAction action, const LiveMemory& memory, uint64_t stream, int64_t time_us);
  bool watched() const { return capacity_ || log_; }
  int64_t time_us() const;

  mutable std::mutex mutex_;
  mutable std::atomic<int> program_locks_{0};  // who wants the program to take it
  Version version_;                            // of what slots have changed
  Live slots_live_, blocks_live_;
  std::atomic<uint64_t> live_peak_{0};
  std::deque<Use> uses_;
  struct Earlier {  // also of keys that only look at a name
    using is_transparent = void;
    using Key = std::tuple<bool, UseKind, std::string_view, uint64_t>;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
  };
  std::map<std::tuple<bool, UseKind, std::string, uint64_t>, uint32_t, Earlier> use_numbers_;  // bool: of slots
  std::unordered_map<uint64_t, Named> slots_;  // read by the program without the lock; changed by it, under the lock
  NodeMemory nodes_;
  std::pmr::unordered_map<uint64_t, LiveMemory> blocks_{nodes_.get()};
  std::array<PoolPart, kPoolParts> parts_{};

  std::unique_ptr<JournalEvent[]> ring_;
  size_t capacity_ = 0;
  uint64_t events_ = 0;      // that were ever noted
  int64_t clock_ahead_ = 0;  // microseconds since 1970 when the monotonic clock is at 0
  std::unique_ptr<AllocationLog> log_;
};

}  // namespace fsccl
