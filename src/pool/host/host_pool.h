// A pool: one arena that the ranks of a communicator on a host map, and three regions of it for
// each rank:
//
//   | shared slots | own slots | local blocks |
//
// Shared slots hold parameters that all ranks of a unit read; they lie in the part of the unit's
// first rank. Own slots hold gradients and private parameters. Both are placed by collective
// history (collective_region.h), so their offsets are equal on every rank. Local blocks are any
// rank's own affair (blocks.h).
#pragma once
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>

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

// A unit's slot that outlives reshard. While it is idle the pool may take it back, where slots
// would not fit their limit.
struct KeptSlot {
  PartKind part = PartKind::own;
  uint64_t key = 0;
  // position of the last reshard; 0: there is none, or it is in use
  uint64_t idle_since = 0;
  std::function<void()> withdrawn;  // tells the unit that it is gone
};

class HostPool final : public Pool {
 public:
  // Collective over `comm`, blocking. `source`: what config.source means; null: none was given.
  static Result<std::unique_ptr<HostPool>> create(Communicator& comm,
                                                  const fsccl_pool_config_t& config,
                                                  Result<std::shared_ptr<MemorySource>> source);
  ~HostPool() override;

  // Blocks of this rank alone.
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

  // Slots. `key`: unit and role. The position is the event's; whoever gives back reports it done
  // when the bytes are used no more.
  struct Slot {
    uint64_t offset = 0;            // in its part
    uint64_t release_position = 0;  // position that every rank must have released
  };
  struct SlotName {
    uint64_t key = 0;
    Journal::Slot* of = nullptr;  // valid as long as its unit
  };
  // The caller that takes a slot: all ranks of `with`, for one operation. Ranks that do something
  // else find that out by the operation's fingerprint.
  struct Requester {
    Communicator& comm;
    Fingerprint operation;
  };
  SlotName name_of(uint64_t key) { return {key, &journal_->slot(key)}; }
  // Takes a slot. All ranks of the requester call it at the same place in their programs. A refusal
  // is a refusal on all of them; if memory has to grow, they agree (pool_growth.cpp).
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
  // At a position that the caller has opened, for one slot or several (of a kept unit's reshard:
  // for none).
  Status give_back(PartKind part, const SlotName& name, uint64_t position) {
    const StepTable::Row* row =
        watch_ ? nullptr : region(part).give_back_by_table(name.key, position);
    if (!row) [[unlikely]]
      return give_back_unplanned(part, name, position);
    journal_->slot_given_back_again(*name.of, static_cast<size_t>(part), row->live);
    return success();
  }
  uint64_t open_position() { return ledger_.next(); }
  void done(uint64_t position) { ledger_.done(position); }  // any thread
  // with the position that was opened last
  void done_last() { ledger_.done_last(); }
  Status declare(const std::vector<CollectiveRegion::Event>& shared,
                 const std::vector<CollectiveRegion::Event>& own, int owner_rank);
  Status end_step() override;
  uint64_t history_hash() const override;

  // Address, in this process, of an offset in a part of pool rank `rank`.
  std::byte* address(PartKind part, int rank, uint64_t offset) const {
    return arena_->region(rank) + part_begin(part) + offset;
  }
  // Returns where the caller sees what is at an address of a slot; in debug mode it is not the
  // same.
  std::byte* seen(std::byte* address) const { return watch_ ? watch_->seen(address) : address; }
  SlotWatch* watch() const { return watch_.get(); }  // null but in debug mode
  // The shared part that `rank` hosts, for units whose ranks may write to what they share
  // (PrivateView). Made once, before use.
  Status make_private_view(int rank);
  std::byte* private_address(int rank, uint64_t offset) const {
    return private_views_.at(rank).base() + offset;
  }
  void drop_writes(int rank, uint64_t offset, uint64_t bytes);
  // Ranks whose units have slots here, with the same history of slots.
  void add_sharer(int rank) { sharers_.insert(rank); }
  const ReleaseLine* release_line(int rank) const {
    return reinterpret_cast<const ReleaseLine*>(arena_->control()) + rank;
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

  std::vector<KeptSlot*> kept_slots;  // slots that these units keep
  // by key: what to call it, and what it holds
  std::map<uint64_t, std::function<std::string()>> units;

 private:
  explicit HostPool(Communicator& comm, std::byte* control);
  static Result<std::unique_ptr<HostPool>> create_on_host(Communicator& comm, Communicator& whole,
                                                          const fsccl_pool_config_t& config,
                                                          Result<PoolSource> source);
  uint64_t part_begin(PartKind part) const { return memory_->part_begin(part); }
  // A slot that a table has can be taken: all its bytes exist, and nobody looks at them.
  bool table_is_ready(PartKind part, int owner_rank) const {
    return ready_[static_cast<size_t>(part)] && ledger_.room() &&
           (part != PartKind::shared ||
            shared_owner_.load(std::memory_order_relaxed) == owner_rank);
  }
  void look_if_ready();
  uint64_t location(PartKind part, int rank, uint64_t offset) const {
    return reinterpret_cast<uint64_t>(address(part, rank, offset));
  }
  Result<Slot> take_unplanned(PartKind part, int owner_rank, const SlotName& name, uint64_t bytes,
                              bool stable, const Requester& requester);
  Status give_back_unplanned(PartKind part, const SlotName& name, uint64_t position);
  // Growing together (pool_growth.cpp).
  struct MemoryChange {
    std::array<BackedBytes::Ranges, 2> given_back, made;  // by part
    // position that every rank must have released first
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
  bool withdraw_kept();
  Status wait_released(uint64_t position);
  Status give_back_surplus(PartKind part);
  std::string holders() const;
  void make_memory(const PoolMemory::Limits& limits, bool prefault);
  void make_blocks(bool debug);
  void update_figures();
  void tell(MetricSamples& samples, std::string_view id) const;
  CollectiveRegion& region(PartKind part) { return part == PartKind::shared ? *shared_ : *own_; }

  // made for this pool, if it was asked for on a communicator of several hosts: that one
  std::unique_ptr<Communicator> host_;
  Communicator* whole_ = nullptr;
  uint32_t arena_id_ = 0;
  uint64_t part_bytes_ = 0;
  bool dry_run_ = false;
  PoolSource source_;  // outlives what is made of it
  std::unique_ptr<HostArena> arena_;
  std::unique_ptr<PoolMemory> memory_;
  std::unique_ptr<SlotWatch> watch_;
  std::map<int, PrivateView> private_views_;  // by the rank that hosts the part
  ReleaseLedger ledger_;
  std::unique_ptr<CollectiveRegion> shared_, own_;
  // Figures of the slots, which any thread may read while the program goes on.
  struct SlotFigures {
    struct MemoryPlan {
      std::atomic<uint64_t> bytes{0}, bound{0}, clique_bound{0};
    };
    std::atomic<uint64_t> peak{0}, hits{0}, misses{0};
    std::array<MemoryPlan, 2> plans;  // by part
  };
  SlotFigures slot_figures_;
  std::atomic<int> shared_owner_{-1};
  std::array<bool, 2> ready_{};     // by part; since the last event that no table had
  std::array<uint64_t, 2> base_{};  // by part, when it is ready: its address
  std::set<int> sharers_;
  // State of sparse parts: at the last step boundary, and before the next slot.
  bool torn_ = false, mend_due_ = false;
  // By part of slots: the position at which the surplus was first seen.
  std::array<std::optional<uint64_t>, 2> surplus_since_;
  std::unique_ptr<Blocks> blocks_;
  mutable std::mutex mutex_;  // the figures below
  uint64_t steps_ = 0;
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
