// The objects behind the handles of the public header, and the tables that hold them.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <type_traits>
#include <utility>

#include "api/guard.h"
#include "api/handle.h"
#include "api/structs.h"
#include "base/threads.h"
#include "comm/communicator.h"
#include "pool/pool.h"
#include "unit/unit.h"

namespace fsccl {

struct CommObject {
  std::unique_ptr<Communicator> comm;  // the creator's until `ready`
  std::atomic<Communicator*> ready{nullptr};
  std::atomic<bool> failed{false};  // creation failed; `error` says how
  Error error;
  std::mutex creator_mutex;
  Thread creator;  // thread of a nonblocking creation
  // by (from, to): on which this rank sends and receives, made when first used
  std::map<std::pair<int, int>, fsccl_comm_t> pairs;
};
using CommTable = HandleTable<CommObject, HandleKind::comm, 16384>;
using PoolTable = HandleTable<Pool, HandleKind::pool, 4096>;
using UnitTable = HandleTable<Unit, HandleKind::unit, 65536>;
// The tables are never destroyed, so they outlive every thread that may look up an object.
extern constinit CommTable comms;
extern constinit PoolTable pools;
extern constinit UnitTable units;
static_assert(std::is_trivially_destructible_v<CommTable>);

template <class Handle>
uint64_t bits_of(Handle handle) {
  return reinterpret_cast<uint64_t>(handle);
}

// Returns the communicator of a handle if it is usable, and null without an error otherwise
// (comm_of() gives the error).
inline Ref<Communicator> live_comm(fsccl_comm_t handle) {
  if (forked()) [[unlikely]]
    return {};
  Ref<CommObject> found = comms.find(bits_of(handle));
  const CommObject* const object = found.get();
  if (!object) [[unlikely]]
    return {};
  // This load pairs with the stores of `ready` where communicators are made (comm.cpp,
  // messages.cpp).
  return {object->ready.load(std::memory_order_acquire), std::move(found)};
}

// Returns the object of a handle, which lives as long as the reference, or the error for the
// caller. A communicator that is still being created, or whose creation failed, is an error
// (object_of() returns it).
Result<Ref<Communicator>> comm_of(fsccl_comm_t handle);
inline Result<Ref<Pool>> pool_of(fsccl_pool_t handle) { return object_of(pools, handle); }
inline Result<Ref<Unit>> unit_of(fsccl_unit_t handle) { return object_of(units, handle); }

// A work names an operation: its communicator's slot, a part of that slot's generation, and the low
// half of its sequence number. It needs no memory.
fsccl_work_t make_work(fsccl_comm_t comm, uint64_t sequence);
bool is_work(uint64_t bits);  // it looks like one
// Returns the handle of the communicator that an engine belongs to. A unit's operations run on its
// communicators.
inline fsccl_comm_t comm_of_engine(const Engine& engine) {
  return reinterpret_cast<fsccl_comm_t>(engine.key());
}

}  // namespace fsccl
