// The bytes that a pool has reserved of its arena, part by part, and the limits that it keeps.
// Parts grow from their beginning and are whole huge pages long, so that a step which fits the
// reserved bytes makes no system call.
//
// Slots are placed within the smallest of all ranks' limits, from facts that are equal on all
// ranks: a slot without room is refused on all of them. A request may exceed this rank's own limit
// because of its blocks, or its machine may have no memory. Then this rank gives back the memory
// that its blocks do not use and asks the program for memory, once, before the request fails. After
// a failure the pool takes the slot back on all ranks (pool_growth.cpp). Limits are exact to the
// page: sizes that are rounded up to huge pages stop at them.
//
// If the program has given a source, this rank gets its memory from it. Adaptors see the requests,
// and may refuse them.
//
// Parts of slots may be sparse (backed_bytes.h): then only some of their bytes exist, which may be
// more or fewer than their extent.
//
// Any thread may call the functions; those for sparse parts only the thread of the pool's program.
// The lock is not held while `Relief` or the source is called.
#pragma once
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>

#include "allocators/adaptors/memory_source.h"
#include "allocators/host/arena.h"
#include "allocators/placement/backed_bytes.h"
#include "allocators/placement/journal.h"
#include "base/limits.h"
#include "base/round_up.h"
#include "base/status.h"

namespace fsccl {

enum class PartKind : uint8_t { shared, own, local };

class PoolMemory {
 public:
  static constexpr uint64_t kGrowth = 2u << 20;  // parts grow by whole huge pages
  struct Limits {
    uint64_t all = 0;    // the bytes that this rank may reserve
    uint64_t slots = 0;  // the bytes that slots may take
    uint64_t soft = 0;   // the program is asked to free memory beyond it; 0: never
  };
  struct Relief {
    std::function<void()> trim;               // gives back what blocks do not use
    std::function<void(uint64_t bytes)> ask;  // asks the program to free so many bytes
    std::function<std::string()> holders;     // returns the holders of memory, for the error
  };

  PoolMemory(HostArena& arena, std::string name, int rank, uint64_t part_bytes,
             const Limits& limits)
      : arena_(arena),
        name_(std::move(name)),
        rank_(rank),
        part_bytes_(part_bytes),
        limits_(limits) {}
  ~PoolMemory();
  void set_source(MemorySource* source) { source_ = source; }
  void set_relief(Relief relief) { relief_ = std::move(relief); }
  void set_prefault(bool prefault) { prefault_ = prefault; }
  void set_journal(Journal* journal) { journal_ = journal; }  // the journal outlives this object
  void set_dry_run() { dry_run_ = true; }                     // counts, and reserves nothing
  void set_sparse() { sparse_ = true; }                       // not together with a source

  bool sparse() const { return sparse_; }
  // Returns the extent of the part below which all bytes exist.
  uint64_t whole(PartKind part) const { return sparse_ ? backed(part).whole() : extent(part); }
  const BackedBytes& backed(PartKind part) const { return backed_[static_cast<size_t>(part)]; }
  // Makes ranges of a sparse part exist, all or none. If it fails, *lacking is the number of bytes
  // that were missing, as far as this rank can know. give_back() gives a range back.
  Status make(PartKind part, int owner, const BackedBytes::Ranges& ranges, uint64_t* lacking);
  void give_back(PartKind part, int owner, uint64_t begin, uint64_t end);

  uint64_t part_begin(PartKind part) const { return static_cast<uint64_t>(part) * part_bytes_; }
  // Makes the first `extent` bytes (whole pages) of a part of slots that is not sparse exist, in
  // the region of arena rank `owner`. *lacking is set as by make().
  Status grow(PartKind part, int owner, uint64_t extent, uint64_t* lacking);
  // Makes the first `extent` bytes of blocks exist.
  Status grow_blocks(uint64_t extent);
  // Returns the bytes that slots may take in all, the same on all ranks.
  uint64_t most_slots() const { return limits_.slots / page_ * page_; }
  // Returns `extent` rounded up to whole huge pages, or to the pages for which there is room.
  uint64_t rounded(uint64_t extent, uint64_t room) const {
    return std::min(std::max(round_up(extent, page_),
                             std::min(round_up(extent, kGrowth), room / page_ * page_)),
                    part_bytes_);
  }
  // Returns how far one part of slots may reach if the other one has the extent `other`.
  uint64_t slot_room(uint64_t other) const {
    return std::min(most_slots() - std::min(other, most_slots()), part_bytes_);
  }
  // refuse_slot() returns the error of a slot that has no room. check_slots() checks that there is
  // room for slots of these extents, which `what` needs.
  Status refuse_slot(uint64_t bytes) const;
  Status check_slots(uint64_t shared, uint64_t own, const char* what) const;
  // Gives back what lies above the first `extent` bytes of the part, rounded up to whole huge
  // pages; returns how much that was.
  uint64_t shrink(PartKind part, int owner, uint64_t extent) {
    return cut(part, owner, round_up(extent, kGrowth));
  }
  uint64_t cut(PartKind part, int owner, uint64_t kept);  // shrinks to the byte
  // Returns true if more of the part exists than a growth to `extent` would make.
  bool exceeds(PartKind part, uint64_t extent) const;
  uint64_t extent(PartKind part) const {
    // This load pairs with the stores of the functions that change the extent: make_ranges(),
    // give_back(), extend() and cut().
    return extents_[static_cast<size_t>(part)].load(std::memory_order_acquire);
  }
  bool beyond_soft_limit() const { return limits_.soft && held() > limits_.soft; }
  uint64_t limit() const { return limits_.all; }
  uint64_t left() const { return limits_.all - std::min(held(), limits_.all); }
  uint64_t growths() const { return growths_.load(std::memory_order_relaxed); }
  uint64_t given_back_bytes(PartKind part) const {
    return given_back_[static_cast<size_t>(part)].load(std::memory_order_relaxed);
  }

 private:
  // A demand is called with the lock. It releases the lock while it asks the source.
  using Lock = std::unique_lock<std::mutex>;
  struct Demand {
    std::function<uint64_t()> more;  // returns the bytes that are still wanted; 0: none
    std::function<Status(uint64_t, Lock&)> take;  // takes so many bytes
  };
  Status ask(const Demand& demand, uint64_t* lacking);
  Status grow_to(PartKind part, int owner, const std::function<uint64_t()>& wanted,
                 uint64_t* lacking);
  Status make_ranges(PartKind part, int owner, const BackedBytes::Ranges& ranges);
  Status extend(PartKind part, int owner, uint64_t more);  // with the lock
  Status extend_by_source(PartKind part, uint64_t more);   // without the lock
  void give_to_source(PartKind part, uint64_t from, uint64_t bytes);
  uint64_t slots() const { return extent(PartKind::shared) + extent(PartKind::own); }
  uint64_t held() const { return slots() + extent(PartKind::local); }
  const char* whose_slots() const {
    return limits_.slots < limits_.all ? "the smallest of the ranks'" : "its";
  }
  std::string holders() const { return relief_.holders ? relief_.holders() : ""; }

  struct Growth final : PoolGrowth {
    Growth(PoolMemory& pool, PartKind of) : memory(pool), part(of) {}
    Result<void*> reserve(uint64_t bytes) override;
    PoolMemory& memory;
    PartKind part;
  };

  HostArena& arena_;
  MemorySource* source_ = nullptr;
  std::string name_;
  int rank_;
  uint64_t part_bytes_;
  const uint64_t page_ = std::max<uint64_t>(page_bytes(), CollectiveRegion::kAlignment);
  Limits limits_;
  Relief relief_;
  Journal* journal_ = nullptr;
  bool prefault_ = false, dry_run_ = false;

  std::mutex mutex_;  // protects changes of the following members, and the arena's calls
  std::array<std::atomic<uint64_t>, 3> extents_{};
  // bytes of sparse parts
  std::array<BackedBytes, 2> backed_{BackedBytes(kGrowth), BackedBytes(kGrowth)};
  bool sparse_ = false;
  std::array<uint64_t, 3> from_source_{};              // by part: bytes that the source has given
  std::array<std::atomic<uint64_t>, 3> given_back_{};  // by part: bytes that went to the system
  std::atomic<uint64_t> growths_{0};
};

}  // namespace fsccl
