// fsccl_pool_*.
#include <map>
#include <set>

#include "api/allocators.h"
#include "api/objects.h"
#include "base/hash.h"

using namespace fsccl;

namespace {

Status no_stream(void* stream) {
  return stream ? fail(FSCCL_ERR_NOT_AVAILABLE, "stream is not NULL: this release has host pools only; pass NULL") : success();
}

// A declared step as events of the pool's two regions.
struct Declared {
  std::vector<CollectiveRegion::Event> shared, own;
  std::set<const Unit*> kept;
  std::map<std::pair<const Unit*, bool>, bool> held;  // of a unit's gradients (true) or parameters: its slot, so far
  int host_rank = -1;
  uint64_t hash = 0;
};

// An order that no program can follow. A slot that is held now may be given back first, or be taken anew.
Status check_order(const Unit& unit, const fsccl_event_t& event, size_t index, Declared* declared) {
  const bool of_gradients = event.kind == FSCCL_EVENT_GRAD || event.kind == FSCCL_EVENT_REDUCE;
  const bool takes = event.kind == FSCCL_EVENT_UNSHARD || event.kind == FSCCL_EVENT_GRAD;
  const auto [found, first] =
      declared->held.try_emplace({&unit, of_gradients}, of_gradients ? unit.holds_grads() : unit.unsharded());
  bool& held = found->second;
  if (takes == held && !(first && takes))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "event {}: the slot for the {} of unit '{}' is {} at that point", index,
                of_gradients ? "gradients" : "parameters", unit.spec().name, held ? "held already" : "not held");
  held = takes;
  return success();
}

Status declare_event(const Pool& pool, const fsccl_event_t& event, size_t index, Declared* declared) {
  Result<Unit*> found = unit_of(event.unit);
  if (!found.ok()) return fail(FSCCL_ERR_INVALID_HANDLE, "event {}: {}", index, found.status().text());
  Unit& unit = *found.value();
  if (unit.spec().pool != &pool)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "event {}: unit '{}' has its slots in another pool, '{}': declare them there", index,
                unit.spec().name, unit.spec().pool->name());
  if (event.kind >= FSCCL_EVENT_UNSHARD && event.kind <= FSCCL_EVENT_REDUCE) FSCCL_TRY(check_order(unit, event, index, declared));
  auto& slots = unit.slot_part() == Part::shared ? declared->shared : declared->own;
  if (unit.slot_part() == Part::shared) declared->host_rank = unit.host_rank();
  const uint64_t slot_bytes = std::max<uint64_t>(unit.slot_bytes(), 1), grad_bytes = std::max<uint64_t>(unit.grad_slot_bytes(), 1);
  switch (event.kind) {
    case FSCCL_EVENT_UNSHARD:
      // A kept slot is taken once and stays.
      if (!unit.keeps() || (!unit.holds_slot() && declared->kept.insert(&unit).second))
        slots.push_back({.stable = true, .key = unit.slot_key(), .bytes = slot_bytes});
      break;
    case FSCCL_EVENT_RESHARD:
      if (!unit.keeps()) slots.push_back({.op = StepOp::kGiveBack, .key = unit.slot_key()});
      break;
    case FSCCL_EVENT_GRAD:
      declared->own.push_back({.key = unit.grad_key(), .bytes = grad_bytes});
      break;
    case FSCCL_EVENT_REDUCE:
      declared->own.push_back({.op = StepOp::kGiveBack, .key = unit.grad_key()});
      break;
    default:
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "event {}: {} is not a fsccl_event_kind_t", index, static_cast<int>(event.kind));
  }
  declared->hash = mix_hash(mix_hash(declared->hash, unit.slot_key()), static_cast<uint64_t>(event.kind));
  return success();
}

// Every rank must declare the same.
Status compare(Pool& pool, uint64_t hash) {
  Communicator& comm = pool.comm();
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  CollectiveCall call;
  call.op = OpCode::all_gather;
  call.input = &hash;
  call.output = all.data();
  call.count = 1;
  call.dtype = FSCCL_UINT64;
  fsccl_status_t state;
  FSCCL_TRY(comm.collectives().run(call, true, &state));
  for (size_t rank = 0; rank < all.size(); rank++)
    if (all[rank] != hash)
      return fail(FSCCL_ERR_MISMATCH, "rank {} declared another schedule for pool '{}' than rank {}", rank, pool.name(),
                  comm.rank());
  return success();
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_pool_create(fsccl_comm_t handle, const fsccl_pool_config_t* given, fsccl_pool_t* pool) {
  return guarded("fsccl_pool_create", [&]() -> Status {
    if (!pool) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool is NULL");
    FSCCL_ASSIGN(Communicator * comm, comm_of(handle));
    fsccl_pool_config_t config;
    FSCCL_TRY(read_config(given, fsccl_pool_config_t FSCCL_POOL_CONFIG_INIT, &config));
    if (config.memory != FSCCL_MEMORY_HOST)
      return fail(FSCCL_ERR_NOT_AVAILABLE, "pools of device memory come with a later release: use FSCCL_MEMORY_HOST");
    auto object = std::make_unique<PoolObject>();
    Result<std::shared_ptr<MemorySource>> source = std::shared_ptr<MemorySource>();
    if (config.source) source = source_of(config.source);
    FSCCL_ASSIGN(object->pool, Pool::create(*comm, config, std::move(source)));
    Pool* const made = object->pool.get();
    FSCCL_ASSIGN(const uint64_t bits, pools().add(std::move(object)));
    *pool = reinterpret_cast<fsccl_pool_t>(bits);
    if (config.on_pressure)
      made->set_pressure([ask = config.on_pressure, context = config.on_pressure_context, handle = *pool](uint64_t bytes) {
        ask(context, handle, bytes);
      });
    return success();
  });
}

fsccl_status_t fsccl_pool_destroy(fsccl_pool_t handle) {
  return guarded("fsccl_pool_destroy", [&]() -> Status {
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    if (Notifications::calling())
      return fail(FSCCL_ERR_INVALID_STATE, "called from a function that was given to fsccl_work_callback: destroy it elsewhere");
    FSCCL_TRY(pool->check_empty());
    pools().take(bits_of(handle));
    return success();
  });
}

fsccl_status_t fsccl_pool_alloc(fsccl_pool_t handle, size_t bytes, void* stream, void** pointer) {
  return guarded("fsccl_pool_alloc", [&]() -> Status {
    if (!pointer) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pointer is NULL");
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    FSCCL_TRY(no_stream(stream));
    if (bytes > uint64_t{1} << 47) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are more than any machine has", bytes);
    FSCCL_ASSIGN(*pointer, pool->alloc(bytes));
    return success();
  });
}

fsccl_status_t fsccl_pool_free(fsccl_pool_t handle, void* pointer, void* stream) {
  return guarded("fsccl_pool_free", [&]() -> Status {
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    FSCCL_TRY(no_stream(stream));
    return pointer ? pool->free(pointer) : success();
  });
}

fsccl_status_t fsccl_pool_import(fsccl_pool_t handle, void* pointer, size_t bytes) {
  return guarded("fsccl_pool_import", [&]() -> Status {
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    return pool->import(pointer, bytes);
  });
}

fsccl_status_t fsccl_pool_stats(fsccl_pool_t handle, fsccl_pool_stats_t* stats) {
  return guarded("fsccl_pool_stats", [&]() -> Status {
    if (!stats || stats->size < sizeof(*stats))
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "stats is NULL, or not initialised with FSCCL_POOL_STATS_INIT");
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    pool->stats(stats);
    return success();
  });
}

fsccl_status_t fsccl_pool_trim(fsccl_pool_t handle, uint64_t* released) {
  return guarded("fsccl_pool_trim", [&]() -> Status {
    if (!released) return fail(FSCCL_ERR_INVALID_ARGUMENT, "released is NULL");
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    *released = pool->trim();
    return success();
  });
}

fsccl_status_t fsccl_pool_snapshot(fsccl_pool_t, const char*) {
  return not_available("fsccl_pool_snapshot", "it comes with a later release", "use fsccl_pool_stats");
}

fsccl_status_t fsccl_pool_use(fsccl_pool_t, const void*, size_t, void*, int) {
  return not_available("fsccl_pool_use", "it comes with a later release", "use one stream");
}

fsccl_status_t fsccl_pool_record(fsccl_pool_t, const void*, void*) {
  return not_available("fsccl_pool_record", "it comes with a later release", "use one stream");
}

fsccl_status_t fsccl_pool_wait(fsccl_pool_t, const void*, void*) {
  return not_available("fsccl_pool_wait", "it comes with a later release", "use one stream");
}

fsccl_status_t fsccl_pool_uses(fsccl_pool_t, void (*)(void*, const fsccl_pool_use_t*), void*) {
  return not_available("fsccl_pool_uses", "it comes with a later release", "use fsccl_pool_stats");
}

fsccl_status_t fsccl_pool_schedule(fsccl_pool_t handle, const fsccl_event_t* events, size_t count) {
  return guarded("fsccl_pool_schedule", [&]() -> Status {
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    if (count && !events) return fail(FSCCL_ERR_INVALID_ARGUMENT, "events is NULL though count is {}", count);
    Declared declared;
    for (size_t i = 0; i < count; i++) FSCCL_TRY(declare_event(*pool, events[i], i, &declared));
    FSCCL_TRY(compare(*pool, declared.hash));
    return pool->declare(declared.shared, declared.own, declared.host_rank);
  });
}

fsccl_status_t fsccl_pool_step(fsccl_pool_t handle) {
  return guarded("fsccl_pool_step", [&]() -> Status {
    FSCCL_ASSIGN(Pool * pool, pool_of(handle));
    return pool->end_step();
  });
}

}  // extern "C"
