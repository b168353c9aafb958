// A pool has slots, which all ranks of a communicator place at the same offsets, and blocks, which
// each rank allocates alone. HostPool is a pool on host memory, DevicePool a pool on a GPU.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "allocators/placement/journal.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"

namespace fsccl {

// Returns an error if a call gives a stream for an object in host memory, where streams order
// nothing, and success for NULL. `kind` and `name` are those of the object.
inline Status refuse_stream(const void* stream, const char* kind, const std::string& name) {
  if (!stream) return success();
  return fail(FSCCL_ERR_INVALID_ARGUMENT,
              "stream is {}, but {} '{}' lies in host memory, where streams order nothing: give "
              "NULL, and call when the memory may be used",
              stream, kind, name);
}

class Pool {
 public:
  virtual ~Pool() = default;

  virtual fsccl_memory_t memory() const = 0;
  virtual int device_ordinal() const { return 0; }  // ordinal of the GPU
  // Returns true for a rehearsal: no slot or block has memory, and operations of units move
  // nothing.
  virtual bool dry_run() const { return false; }
  Communicator& comm() const { return comm_; }
  const std::string& name() const { return name_; }
  // The record of the pool's uses of memory.
  Journal& journal() { return *journal_; }
  // Sets `ask`, which is called before memory is short, with the number of bytes that are wanted.
  void set_pressure(std::function<void(uint64_t bytes)> ask) { ask_ = std::move(ask); }

  // These are the functions for blocks, as described at fsccl_pool_alloc(), fsccl_pool_free() and
  // fsccl_pool_import(). Any thread may call them.
  virtual Result<void*> alloc_block(uint64_t bytes, void* stream, uint64_t alignment) = 0;
  virtual Status free_block(void* pointer, void* stream) = 0;
  virtual Status import(void* pointer, uint64_t bytes) = 0;

  // Ends a step. Collective.
  virtual Status end_step() = 0;
  // Returns a hash of the slots that were taken and given back so far. It is the same on all ranks.
  virtual uint64_t history_hash() const = 0;

  virtual void stats(fsccl_pool_stats_t* stats) const = 0;  // any thread
  // Gives unused memory of blocks back to the system, and returns the number of bytes.
  virtual uint64_t trim() = 0;
  // Returns an error that lists the blocks and units of the pool, if there are any.
  virtual Status check_empty() = 0;
  virtual void owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
                      void* context) const = 0;
  virtual Status snapshot(const std::string& path) const = 0;

  uint64_t next_unit_key() { return ++unit_keys_; }
  uint64_t kept_bytes = 0;  // the bytes that are promised to units that keep their slots

 protected:
  explicit Pool(Communicator& comm) : comm_(comm) {}

  Communicator& comm_;  // ranks that share the memory
  std::string name_;
  std::function<void(uint64_t bytes)> ask_;  // on_pressure
  std::unique_ptr<Journal> journal_;
  uint64_t unit_keys_ = 0;
};

}  // namespace fsccl
