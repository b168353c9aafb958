// A pool: memory whose slots all ranks of a communicator place alike, and blocks of each rank
// alone. HostPool is one on host memory, DevicePool one on a GPU.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "allocators/placement/journal.h"
#include "comm/communicator.h"
#include "fsccl/insight.h"

namespace fsccl {

// The error of a call with a stream for what lies in host memory, where streams order nothing;
// success for NULL. `kind` and `name`: of what the call is about.
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
  // A rehearsal: nothing has memory, and operations of units move nothing.
  virtual bool dry_run() const { return false; }
  Communicator& comm() const { return comm_; }
  const std::string& name() const { return name_; }
  // The record of the pool's uses of memory.
  Journal& journal() { return *journal_; }
  // `ask` is called before memory is short, with the bytes that are wanted.
  void set_pressure(std::function<void(uint64_t bytes)> ask) { ask_ = std::move(ask); }

  // Blocks, as fsccl_pool_alloc(), fsccl_pool_free() and fsccl_pool_import() say. Any thread.
  virtual Result<void*> alloc_block(uint64_t bytes, void* stream, uint64_t alignment) = 0;
  virtual Status free_block(void* pointer, void* stream) = 0;
  virtual Status import(void* pointer, uint64_t bytes) = 0;

  // A step ends; collective.
  virtual Status end_step() = 0;
  // A hash of the slots that were taken and given back so far, alike on all ranks.
  virtual uint64_t history_hash() const = 0;

  virtual void stats(fsccl_pool_stats_t* stats) const = 0;  // any thread
  // Gives unused memory of blocks back to the system, and says how many bytes.
  virtual uint64_t trim() = 0;
  // Without blocks and units; else an error that lists them.
  virtual Status check_empty() = 0;
  virtual void owners(void (*visit)(void* context, const fsccl_pool_owner_t* use),
                      void* context) const = 0;
  virtual Status snapshot(const std::string& path) const = 0;

  uint64_t next_unit_key() { return ++unit_keys_; }
  uint64_t kept_bytes = 0;  // promised to units that keep their slots

 protected:
  explicit Pool(Communicator& comm) : comm_(comm) {}

  Communicator& comm_;  // ranks that share the memory
  std::string name_;
  std::function<void(uint64_t bytes)> ask_;  // on_pressure
  std::unique_ptr<Journal> journal_;
  uint64_t unit_keys_ = 0;
};

}  // namespace fsccl
