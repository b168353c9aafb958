// What happened to a pool's memory, and by whom: counters for each kind, unit and stream; what is live now; if it was asked for,
// the last events in a ring that was made with the journal, and a log (allocation_log.h). The pool reports every slot and block
// after it was granted and before its bytes can be granted anew, so that events of one address are in order.
//
// A slot's owner is found by the key that the unit gave a name to; to take and give back a slot then adds to counters, under a lock
// that nobody holds for long: nothing is allocated, no time is read, no system call is made. Any thread.
#pragma once
#include <array>
#include <cstdint>
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
  uint64_t address = 0, bytes = 0;  // that exist, from its beginning
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
  void step();

  uint64_t live_peak() const;  // the most bytes live at once
  std::vector<MemoryUse> uses() const;
  JournalCopy copy() const;

 private:
  struct Named {
    uint32_t use = 0;
    std::array<LiveMemory, 2> live{};  // in the shared part, in the own part; bytes 0: none
  };
  Journal() = default;
  uint32_t use_of(const Owner& owner);
  Named& named(uint64_t key);
  void take(const LiveMemory& memory);
  void give_back(const LiveMemory& memory, uint64_t stream);
  void refuse(uint32_t use, uint64_t bytes, uint64_t free);
  void note(JournalAction action, const LiveMemory& memory, uint64_t stream, int64_t time_us);
  bool watched() const { return capacity_ || log_; }
  int64_t time_us() const;

  mutable std::mutex mutex_;
  std::vector<MemoryUse> uses_;
  struct Earlier {  // also of keys that only look at a name
    using is_transparent = void;
    using Key = std::tuple<UseKind, std::string_view, uint64_t>;
    bool operator()(const Key& a, const Key& b) const { return a < b; }
  };
  std::map<std::tuple<UseKind, std::string, uint64_t>, uint32_t, Earlier> use_numbers_;
  std::unordered_map<uint64_t, Named> slots_;
  NodeMemory nodes_;
  std::pmr::unordered_map<uint64_t, LiveMemory> blocks_{nodes_.get()};
  std::array<PoolPart, kPoolParts> parts_{};
  uint64_t live_ = 0, live_peak_ = 0;

  std::unique_ptr<JournalEvent[]> ring_;
  size_t capacity_ = 0;
  uint64_t events_ = 0;      // that were ever noted
  int64_t clock_ahead_ = 0;  // microseconds since 1970 when the monotonic clock is at 0
  std::unique_ptr<AllocationLog> log_;
};

}  // namespace fsccl
