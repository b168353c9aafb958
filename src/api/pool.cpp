// fsccl_pool_*.
#include "api/allocators.h"
#include "api/declared_step.h"
#include "api/objects.h"
#include "base/user_call.h"
#include "comm/consensus.h"
#include "comm/together.h"
#include "fsccl/insight.h"

using namespace fsccl;

namespace {

// Every rank must declare the same values.
Status compare(Pool& pool, uint64_t hash) {
  Communicator& comm = pool.comm();
  FSCCL_ASSIGN(const int odd, first_that_differs(comm, hash));
  if (odd < 0) return success();
  return fail(FSCCL_ERR_MISMATCH, "rank {} declared another schedule for pool '{}' than rank {}",
              odd, pool.name(), comm.rank());
}

}  // namespace

extern "C" {

fsccl_status_t fsccl_pool_create(fsccl_comm_t handle, const fsccl_pool_config_t* given,
                                 fsccl_pool_t* pool) {
  return guarded("fsccl_pool_create", [&]() -> Status {
    if (!pool) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pool is NULL");
    FSCCL_ASSIGN(const Ref<Communicator> comm, comm_of(handle));
    fsccl_pool_config_t config;
    FSCCL_TRY(read_config(given, fsccl_pool_config_t FSCCL_POOL_CONFIG_INIT, &config));
    if (config.memory != FSCCL_MEMORY_HOST && config.memory != FSCCL_MEMORY_CUDA)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "memory is {}, which is not a fsccl_memory_t",
                  static_cast<int>(config.memory));
    Result<std::shared_ptr<MemorySource>> source = std::shared_ptr<MemorySource>();
    // The other ranks must learn of an error, so it goes with the source into the functions below.
    if (config.limit_bytes > uint64_t{kMostPoolBytes})
      source = fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "limit_bytes is {}, and at most {} is accepted, which is more than any machine "
                    "has; give 0 for the default limit (FSCCL_POOL_LIMIT)",
                    config.limit_bytes, kMostPoolBytes);
    else if (config.source)
      source = source_of(config.source);
    const Together together(*comm);
    std::unique_ptr<Pool> made;
    if (config.memory == FSCCL_MEMORY_HOST) {
      FSCCL_ASSIGN(made, HostPool::create(*comm, config, std::move(source)));
    } else {
      FSCCL_ASSIGN(made, DevicePool::create(*comm, config, std::move(source)));
    }
    const auto known_as = std::make_shared<fsccl_pool_t>();
    if (config.on_pressure)
      made->set_pressure([call = config.on_pressure, context = config.on_pressure_context,
                          known_as](uint64_t bytes) {
        (void)call_user("on_pressure", uint64_t{0},
                        [&] { return call(context, *known_as, bytes); });
      });
    FSCCL_ASSIGN(const uint64_t bits, pools.add(std::move(made)));
    *pool = *known_as = reinterpret_cast<fsccl_pool_t>(bits);
    return success();
  });
}

fsccl_status_t fsccl_pool_destroy(fsccl_pool_t handle) {
  return guarded("fsccl_pool_destroy", [&]() -> Status {
    const auto may_end = [](Pool& pool) { return pool.check_empty(); };
    Deadline deadline = Deadline::never();
    {
      FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
      if (Notifications::calling())
        return fail(
            FSCCL_ERR_INVALID_STATE,
            "called from a function that was given to fsccl_work_callback: destroy it elsewhere");
      FSCCL_TRY(may_end(*pool));
      deadline = pool->comm().deadline();
    }
    return pools.end(bits_of(handle), deadline, may_end).take_status();
  });
}

fsccl_status_t fsccl_pool_alloc(fsccl_pool_t handle, size_t bytes, void* stream, void** pointer) {
  return guarded("fsccl_pool_alloc", [&]() -> Status {
    if (!pointer) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pointer is NULL");
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    if (bytes > uint64_t{1} << 47)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are more than any machine has", bytes);
    FSCCL_ASSIGN(*pointer, pool->alloc_block(bytes, stream, 1));
    return success();
  });
}

fsccl_status_t fsccl_pool_free(fsccl_pool_t handle, void* pointer, void* stream) {
  return guarded("fsccl_pool_free", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    return pointer ? pool->free_block(pointer, stream) : success();
  });
}

fsccl_status_t fsccl_pool_import(fsccl_pool_t handle, void* pointer, size_t bytes) {
  return guarded("fsccl_pool_import", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    return pool->import(pointer, bytes);
  });
}

fsccl_status_t fsccl_pool_stats(fsccl_pool_t handle, fsccl_pool_stats_t* stats) {
  return guarded("fsccl_pool_stats", [&]() -> Status {
    FSCCL_TRY(check_output(stats, "stats", "FSCCL_POOL_STATS_INIT"));
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    fsccl_pool_stats_t made = FSCCL_POOL_STATS_INIT;
    pool->stats(&made);
    fill_output(stats, made);
    return success();
  });
}

fsccl_status_t fsccl_pool_trim(fsccl_pool_t handle, uint64_t* released) {
  return guarded("fsccl_pool_trim", [&]() -> Status {
    if (!released) return fail(FSCCL_ERR_INVALID_ARGUMENT, "released is NULL");
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    *released = pool->trim();
    return success();
  });
}

fsccl_status_t fsccl_pool_snapshot(fsccl_pool_t handle, const char* path) {
  return guarded("fsccl_pool_snapshot", [&]() -> Status {
    if (!path || !*path)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "path is {}: name the file to write",
                  path ? "empty" : "NULL");
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    return pool->snapshot(path);
  });
}

fsccl_status_t fsccl_pool_owners(fsccl_pool_t handle,
                                 void (*visit)(void* context, const fsccl_pool_owner_t* use),
                                 void* context) {
  return guarded("fsccl_pool_owners", [&]() -> Status {
    if (!visit)
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "visit is NULL: it is called for each owner of memory");
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    pool->owners(visit, context);
    return success();
  });
}

fsccl_status_t fsccl_pool_schedule(fsccl_pool_t handle, const fsccl_event_t* events, size_t count) {
  return guarded("fsccl_pool_schedule", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    const Together together(pool->comm());
    if (count && !events)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "events is NULL though count is {}", count);
    const auto read = [&](auto& step) -> Status {
      for (size_t i = 0; i < count; i++) FSCCL_TRY(step.add(events[i], i));
      return compare(*pool, step.hash);
    };
    if (pool->memory() == FSCCL_MEMORY_CUDA) {
      DeclaredDeviceStep step(*pool);
      FSCCL_TRY(read(step));
      return static_cast<DevicePool&>(*pool).declare(step.events);
    }
    DeclaredStep step(*pool);
    FSCCL_TRY(read(step));
    return static_cast<HostPool&>(*pool).declare(step.shared, step.own, step.owner_rank);
  });
}

fsccl_status_t fsccl_pool_step(fsccl_pool_t handle) {
  return guarded("fsccl_pool_step", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    const Together together(pool->comm());
    return pool->end_step();
  });
}

}  // extern "C"
