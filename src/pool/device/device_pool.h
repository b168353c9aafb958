// A pool on a GPU. It has two arenas. One has the slots of units; the ranks of a host map each
// other's arenas of slots, on peers' GPUs or on the same GPU. The other arena has blocks, which
// each rank allocates alone. Slots are placed as in a pool on host memory (collective_region.h):
// the history of calls determines their offsets, so these are equal on every rank.
//
// Order. A call that gives bytes back says after which work they are free: after everything that
// has been put on its stream, and after the signals of peers that still read the bytes. The next
// call that takes the bytes makes its own stream wait for this, and forgets it. The host does not
// wait. Nothing is put on a stream that depends on what the program does later, so streams cannot
// wait in a circle: the work that a wait stands for was put on its stream before the wait was, on
// this rank or on a peer that runs the same program.
//
// One thread, which runs the program that all ranks have in common, takes slots and gives them
// back. Any thread may use blocks and figures.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "allocators/placement/collective_region.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"
#include "pool/device/device_blocks.h"
#include "pool/device/released_bytes.h"
#include "pool/device/slot_memory.h"
#include "pool/pool.h"

namespace fsccl {

class DevicePool final : public Pool {
 public:
  // Collective over `comm`, blocking: ranks exchange descriptions of their devices. Slots of ranks
  // on other hosts are not mapped. `source` is the source of config.source, or null if there is
  // none.
  static Result<std::unique_ptr<DevicePool>> create(
      Communicator& comm, const fsccl_pool_config_t& config,
      Result<DeviceMemory::Source> source = DeviceMemory::Source());
  ~DevicePool() override;

  // Returns the pool's own stream, for work before the caller has named a stream. It waits only for
  // the work of the pool's blocks.
  const cuda::OwnedStream& own_stream() const { return *own_stream_; }
  // Records an event while the stream lives, so that the pool's end can wait for it even if the
  // stream has been destroyed by then.
  Status note_end(cuda::CUstream stream);

  const cuda::Device& device() const { return *device_; }

  // These are for blocks, which are ordered by streams as fsccl_pool_alloc() and fsccl_pool_free()
  // say. Any thread may call them.
  Result<void*> alloc(uint64_t bytes, cuda::CUstream stream, uint64_t alignment) {
    return blocks_->alloc(bytes, stream, alignment);
  }
  Status free(void* pointer, cuda::CUstream stream) { return blocks_->free(pointer, stream); }
  Result<void*> alloc_block(uint64_t bytes, void* stream, uint64_t alignment) override {
    return alloc(bytes, static_cast<cuda::CUstream>(stream), alignment);
  }
  Status free_block(void* pointer, void* stream) override {
    return free(pointer, static_cast<cuda::CUstream>(stream));
  }
  Status import(void* pointer, uint64_t bytes) override;
  fsccl_memory_t memory() const override { return FSCCL_MEMORY_CUDA; }
  int device_ordinal() const override { return device_->ordinal(); }

  // Returns an error if the pool cannot follow what is put on the stream, as with the stream of a
  // thread, or too many streams. Slots are taken and given back on streams that were checked.
  Status check_stream(cuda::CUstream stream) {
    const std::lock_guard lock(mutex_);
    return marks_.check(stream);
  }

  // Takes a slot. All ranks make the same calls in the same order. `key` stands for a unit and a
  // role. With `stable` the slot has the same offset in every occurrence. Returns the offset in the
  // arena of slots. Work that is put on `stream` from now on follows the last use of these bytes.
  // If one rank refuses, all do. In the first steps the call communicates and blocks, if memory has
  // to grow.
  Result<uint64_t> take(uint64_t key, uint64_t bytes, bool stable, cuda::CUstream stream);
  // Gives a slot back. Its bytes are free when everything that was put on `stream` is done, and
  // `waits` are over, which are operations that wait until a peer has written a word.
  Status give_back(uint64_t key, cuda::CUstream stream,
                   std::vector<cuda::CUstreamBatchMemOpParams> waits);
  // reaches() returns true if this rank and `rank` have mapped each other's slots. slots() returns
  // the address where those of `rank` begin.
  bool reaches(int rank) const { return slots_->reaches(rank); }
  cuda::CUdeviceptr slots(int rank) const { return slots_->base(rank); }
  // Returns where the slots of a communicator's ranks begin. If some are not mapped, returns
  // FSCCL_ERR_NOT_AVAILABLE, which names such a rank and the reason.
  Result<std::vector<cuda::CUdeviceptr>> slots_of(const Communicator& comm) const;
  uint64_t slot_bytes() const { return slots_->bytes(); }  // existing bytes; equal on all ranks
  // Returns the bytes of the slots' first piece of memory. From now on the piece is not given back,
  // because NCCL has a window on it.
  uint64_t first_slot_bytes() const { return slots_->first_bytes(); }
  void keep_first_slots() { keeps_first_slots_ = true; }  // all ranks call it

  Status declare(const std::vector<StepEvent>& events);  // collective, blocking
  // Gives memory back if a new plan needs less. It waits for all ranks before it does.
  Status end_step() override;
  uint64_t history_hash() const override { return region_->hash(); }
  void stats(fsccl_pool_stats_t* stats) const override;
  uint64_t trim() override;  // waits for the work on streams
  Status check_empty() override;
  void owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
              void* context) const override;
  Status snapshot(const std::string& path) const override;
  void add_unit(uint64_t key, std::string name) { units_.insert_or_assign(key, std::move(name)); }
  void remove_unit(uint64_t key) { units_.erase(key); }
  // Names the use of a key before the first slot of the key is taken. The caller also says when the
  // key has no use any more.
  void name_slot(uint64_t key, UseKind kind, const std::string& unit) {
    journal_->name_slot(key, kind, unit);
  }
  void forget_slot(uint64_t key);

  struct Counters {
    uint64_t waits = 0;  // waits of one stream for another that blocks asked for
    size_t events = 0;   // CUDA events that exist
  };
  Counters counters() const;

 private:
  struct Held {
    uint64_t offset = 0, bytes = 0;  // rounded up to the alignment
    Journal::Slot* in_journal = nullptr;
    bool now = false;  // true: the slot is held; false: it was held, and its key is used again
  };
  DevicePool(Communicator& comm, const cuda::Device& device, uint64_t slots_limit, bool record);
  Status make(const fsccl_pool_config_t& config, const Reach& reach,
              Result<DeviceMemory::Source> source);
  Held& held(uint64_t key);
  Result<uint32_t> number_of(cuda::CUstream stream);
  Status order(const Held& slot, cuda::CUstream stream, uint32_t number);
  Result<StreamMark> mark(const Held& slot, cuda::CUstream stream,
                          std::vector<cuda::CUstreamBatchMemOpParams>* waits);
  Status put_waits(cuda::CUstream stream, std::vector<cuda::CUstreamBatchMemOpParams>& waits) const;
  Status poison(const Held& slot, cuda::CUstream stream) const;
  Status give_back_surplus();
  // Copies the figures of the region, which only the thread of the program may read, to a place
  // where any thread may read them.
  void update_figures();
  Deadline deadline() const { return comm_.deadline(); }

  const cuda::Device* device_;
  bool debug_ = false;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<SlotMemory> slots_;
  std::unique_ptr<CollectiveRegion> region_;
  std::unordered_map<uint64_t, Held> held_;  // by key
  bool keeps_first_slots_ = false;
  uint64_t position_ = 0;                  // in the history of slots
  std::map<uint64_t, std::string> units_;  // by key

  mutable std::mutex mutex_;  // the marks, the figures, and the blocks
  StreamMarks marks_;
  ReleasedBytes released_;
  std::vector<StreamMark> needed_;
  ReleasedBytes::Waits needed_waits_;
  std::unique_ptr<DeviceBlocks> blocks_;
  std::optional<cuda::OwnedStream> own_stream_;
  struct SlotFigures {
    uint64_t live = 0, peak = 0, plan_bytes = 0, plan_bound = 0, clique_bound = 0, hits = 0,
             misses = 0;
  };
  mutable std::mutex figures_mutex_;  // guards these two (device_blocks.h says why)
  SlotFigures slot_figures_;
  uint64_t steps_ = 0;
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
