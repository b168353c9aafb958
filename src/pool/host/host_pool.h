// A pool: one arena that the ranks of a communicator on a host map, and three regions of it for
// each rank:
//
//   | shared slots | own slots | local blocks |
//
// Shared slots hold parameters that all ranks of a unit read. They lie in the region of the unit's
// first rank, the owner. Own slots hold gradients and private parameters. The history of collective
// calls determines where both lie (collective_region.h), so their offsets are equal on every rank.
// Each rank allocates its local blocks alone (blocks.h).
#pragma once
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "allocators/host/arena.h"
#include "allocators/host/private_view.h"
#include "allocators/placement/collective_region.h"
#include "allocators/placement/journal.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"
#include "pool/host/blocks.h"
#include "pool/host/pool_memory.h"
#include "pool/host/pool_source.h"
#include "pool/host/release_ledger.h"
#include "pool/host/slot_watch.h"
#include "pool/pool.h"

namespace fsccl {

// A unit's slot that outlives reshard. While it is idle the pool may take it back, if slots would
// otherwise not fit their limit.
struct KeptSlot {
  PartKind part = PartKind::own;
  uint64_t key = 0;
  // The release position of the last reshard. 0: there was none, or the slot is in use.
  uint64_t idle_since = 0;
  std::function<void()> withdrawn;  // tells the unit that the pool has taken the slot back
};

class HostPool final : public Pool {
 public:
  // Collective over `comm`, blocking. `source` is the source of config.source, or null if there is
  // none.
  static Result<std::unique_ptr<HostPool>> create(Communicator& comm,
                                                  const fsccl_pool_config_t& config,
                                                  Result<std::shared_ptr<MemorySource>> source);
  ~HostPool() override;

  // These are for blocks, which this rank allocates alone.
  Result<void*> alloc(uint64_t bytes, uint64_t alignment = 1, const Journal::Owner& owner = {}) {
    return blocks_->alloc(bytes, alignment, owner);
  }
  Status free(void* pointer) { return blocks_->free(pointer); }
  Result<void*> alloc_block(uint64_t bytes, void* stream, uint64_t alignment) override {
    FSCCL_TRY(refuse_stream(stream, "pool", name_));
    return alloc(bytes, alignment);
  }
  Status free_block(void* pointer, void* stream) override {
    FSCCL_TRY(refuse_stream(stream, "pool", name_));
    return free(pointer);
  }
  Status import(void* pointer, uint64_t bytes) override { return blocks_->import(pointer, bytes); }
  Blocks& blocks() { return *blocks_; }
  Status check_empty() override;

  // Slots. A key names a unit and a role. The caller that gives a slot back opens a release
  // position for it (release_ledger.h), and marks the position as done when the bytes are no longer
  // used.
  struct Slot {
    uint64_t offset = 0;            // in its part
    uint64_t release_position = 0;  // every rank must have released it before the slot is written
  };
  struct SlotName {
    uint64_t key = 0;
    Journal::Slot* of = nullptr;  // valid as long as its unit lives
  };
  // The ranks that take a slot together, and the operation for which they take it. Ranks that call
  // something else find that out by the operation's fingerprint.
  struct Requester {
    Communicator& comm;
    Fingerprint operation;
  };
  SlotName name_of(uint64_t key) { return {key, &journal_->slot(key)}; }
  // Takes a slot. All ranks of the requester call it at the same point of their programs. If one
  // rank is refused, all are; if memory has to grow, they agree on it (pool_growth.cpp).
  Result<Slot> take(PartKind part, int owner_rank, const SlotName& name, uint64_t bytes,
                    bool stable, const Requester& requester) {
    if (table_is_ready(part, owner_rank)) [[likely]]
      if (const StepTable::Row* row = region(part).take_by_table(name.key, bytes, stable))
          [[likely]] {
        const uint64_t address = base_[static_cast<size_t>(part)] + row->offset;
        journal_->slot_taken_again(*name.of, static_cast<size_t>(part), address, row->event.bytes,
                                   bytes, row->live);
        return Slot{row->offset, region(part).release_position(*row)};
      }
    return take_unplanned(part, owner_rank, name, bytes, stable, requester);
  }
  // Gives a slot back at a position that the caller has opened. Several slots may have the same
  // position. `engine` is that of the ranks that took the slot.
  Status give_back(PartKind part, const SlotName& name, uint64_t position, Engine& engine) {
    const StepTable::Row* row =
        watch_ ? nullptr : region(part).give_back_by_table(name.key, position);
    if (!row) [[unlikely]]
      return give_back_unplanned(part, name, position, engine);
    journal_->slot_given_back_again(*name.of, static_cast<size_t>(part), row->live);
    return success();
  }
  uint64_t open_position() { return ledger_.next(); }
  // Waits until the ledger has room for another position, for fsccl_unit_release(). A call that
  // takes a slot returns an error instead. `engine` runs the operations that use what the unit gave
  // back.
  Status await_room(Engine& engine, std::string_view unit);
  // Marks a position as done: this rank no longer uses the bytes that were given back at it. Any
  // thread may call this.
  void done(uint64_t position) { ledger_.done(position); }
  void done_last() { ledger_.done_last(); }  // marks the position that was opened last
  Status declare(const std::vector<CollectiveRegion::Event>& shared,
                 const std::vector<CollectiveRegion::Event>& own, int owner_rank);
  Status end_step() override;
  uint64_t history_hash() const override;

  // Returns the address, in this process, of an offset in a part of pool rank `rank`.
  std::byte* address(PartKind part, int rank, uint64_t offset) const {
    return arena_->region(rank) + part_begin(part) + offset;
  }
  // Returns the address at which the caller sees an address of a slot. The two differ in debug
  // mode.
  std::byte* seen(std::byte* address) const { return watch_ ? watch_->seen(address) : address; }
  SlotWatch* watch() const { return watch_.get(); }  // null unless in debug mode
  // Makes the private view (PrivateView) of the shared part of pool rank `rank`, for units whose
  // ranks may write to shared slots. It is made once, before it is used.
  Status make_private_view(int rank);
  std::byte* private_address(int rank, uint64_t offset) const {
    return private_views_.at(rank).base() + offset;
  }
  void drop_writes(int rank, uint64_t offset, uint64_t bytes);
  // Adds a rank that shares units of this pool, and so has the same history of slots.
  void add_sharer(int rank) { sharers_.insert(rank); }
  const Milestone* release_line(int rank) const {
    return reinterpret_cast<const Milestone*>(arena_->control()) + rank;
  }
  int rank() const { return comm_.rank(); }
  int rank_of_job(int job_rank) const { return comm_.rank_of(job_rank); }
  uint32_t arena_id() const { return arena_id_; }
  bool dry_run() const override { return dry_run_; }
  fsccl_memory_t memory() const override { return FSCCL_MEMORY_HOST; }

  void stats(fsccl_pool_stats_t* stats) const override;
  uint64_t trim() override;

  // Insight (pool_insight.cpp).
  void owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
              void* context) const override;
  Status snapshot(const std::string& path) const override;

  std::vector<KeptSlot*> kept_slots;  // the slots that units keep
  // By the unit's key: a function that returns the unit's name and what the unit has in slots.
  std::map<uint64_t, std::function<std::string()>> units;

 private:
  explicit HostPool(Communicator& comm, std::byte* control);
  static Result<std::unique_ptr<HostPool>> create_on_host(Communicator& comm, Communicator& whole,
                                                          const fsccl_pool_config_t& config,
                                                          Result<PoolSource> source);
  uint64_t part_begin(PartKind part) const { return memory_->part_begin(part); }
  // Returns true if slots of the part may be taken by the table of a planned step: all their bytes
  // exist, debug mode is off, and the ledger has room.
  bool table_is_ready(PartKind part, int owner_rank) const {
    return ready_[static_cast<size_t>(part)] && ledger_.room() &&
           (part != PartKind::shared ||
            shared_owner_.load(std::memory_order_relaxed) == owner_rank);
  }
  void look_if_ready();
  Status end_step_here();
  uint64_t location(PartKind part, int rank, uint64_t offset) const {
    return reinterpret_cast<uint64_t>(address(part, rank, offset));
  }
  Result<Slot> take_unplanned(PartKind part, int owner_rank, const SlotName& name, uint64_t bytes,
                              bool stable, const Requester& requester);
  Result<Slot> take_anew(PartKind part, int owner_rank, const SlotName& name, uint64_t bytes,
                         bool stable, const Requester& requester);
  Status give_back_unplanned(PartKind part, const SlotName& name, uint64_t position,
                             Engine& engine);
  // Growth of memory on all ranks (pool_growth.cpp).
  struct MemoryChange {
    std::array<BackedBytes::Ranges, 2> given_back, made;  // by part
    // The position that every rank must have released before the bytes are given back.
    uint64_t released = 0;
    bool empty() const;
    void add(PartKind part, BackedBytes::Change&& change);
  };
  Status agree_on_memory(const Requester& requester, Status mine, uint64_t* lacking) const;
  Status carry_out(const MemoryChange& change, const Requester& requester, uint64_t* lacking);
  void take_back(const std::array<BackedBytes::Ranges, 2>& ranges,
                 const std::array<bool, 2>& there);
  void add_growth(PartKind part, MemoryChange* change);
  Status grow(PartKind part, const Requester& requester);
  Status make_plans_memory(MemoryChange* change);
  int owner_of(PartKind part) const {
    return part == PartKind::shared ? shared_owner_.load() : rank();
  }
  // Sparse parts (pool_sparse.cpp).
  MemoryChange backing(PartKind part, uint64_t begin, uint64_t end, uint64_t most);
  Status back(PartKind part, Slot* slot, uint64_t bytes, const Requester& requester);
  std::array<uint64_t, 2> whole_extents() const;
  void look_if_torn();
  Status plan_mending(MemoryChange* change);
  Status mend(const Requester& requester);
  static bool may_be_sparse(Communicator& comm, const PoolSource& source);
  void set_capacity(PartKind part, uint64_t bytes, uint64_t plan);
  void set_room();
  uint64_t claim(PartKind part) { return std::max(memory_->extent(part), region(part).extent()); }
  Status plan_declared(const std::vector<CollectiveRegion::Event>& shared,
                       const std::vector<CollectiveRegion::Event>& own, bool within_limit);
  Result<SlotGrant> place(PartKind part, uint64_t key, uint64_t bytes, bool stable);
  Result<Slot> take_within_limit(PartKind part, uint64_t key, uint64_t bytes, bool stable,
                                 const Requester& requester);
  bool withdraw_kept(Engine& engine);
  Status wait_released(uint64_t position);
  Status give_back_surplus(PartKind part);
  std::string holders() const;
  void make_memory(const PoolMemory::Limits& limits, bool prefault);
  void make_blocks(bool debug);
  void update_figures();
  void tell(MetricSamples& samples, std::string_view id) const;
  CollectiveRegion& region(PartKind part) { return part == PartKind::shared ? *shared_ : *own_; }

  // If the program gave a communicator of several hosts: the communicator of this host's ranks,
  // which was made for this pool, and the program's communicator.
  std::unique_ptr<Communicator> host_;
  Communicator* whole_ = nullptr;
  uint32_t arena_id_ = 0;
  uint64_t part_bytes_ = 0;
  bool dry_run_ = false;
  PoolSource source_;  // outlives the memory that comes from it
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<SlotWatch> watch_;
  std::map<int, PrivateView> private_views_;  // by the pool rank that owns the part
  ReleaseLedger ledger_;
  std::unique_ptr<CollectiveRegion> shared_, own_;
  // Figures of the slots, which any thread may read while the program runs.
  struct SlotFigures {
    struct MemoryPlan {
      std::atomic<uint64_t> bytes{0}, bound{0}, clique_bound{0};
    };
    std::atomic<uint64_t> peak{0}, hits{0}, misses{0};
    std::array<MemoryPlan, 2> plans;  // by part
  };
  SlotFigures slot_figures_;
  std::atomic<int> shared_owner_{-1};
  std::array<bool, 2> ready_{};     // by part: see table_is_ready()
  std::array<uint64_t, 2> base_{};  // by part: its address, if it is ready
  std::set<int> sharers_;
  // For sparse parts. torn_: bytes of the plan were missing at the last step boundary. mend_due_:
  // the next slot that is taken makes these bytes exist.
  bool torn_ = false, mend_due_ = false;
  // For each part of slots: the position at which its surplus was first seen.
  std::array<std::optional<uint64_t>, 2> surplus_since_;
  std::unique_ptr<Blocks> blocks_;
  mutable std::mutex mutex_;  // the figures below
  uint64_t steps_ = 0;
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
