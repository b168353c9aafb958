// The public functions of fsccl/allocator.h, and the table through which a program calls a source
// of the library. The context of a table is a handle, so a destroyed source is recognised.
#include "api/allocators.h"

#include <algorithm>

#include "allocators/adaptors/adaptors.h"
#include "allocators/adaptors/outside_source.h"
#include "allocators/cuda/device_source.h"
#include "allocators/host/host_source.h"
#include "api/block_table.h"
#include "api/objects.h"
#include "base/config.h"
#include "base/fork.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/user_call.h"
#include "cuda/device.h"

namespace fsccl {
namespace {

struct AllocatorObject {
  std::shared_ptr<MemorySource> source;
  BlockTable blocks;
};

using AllocatorTable = HandleTable<AllocatorObject, HandleKind::allocator, 4096>;
constinit AllocatorTable allocators;

fsccl_status_t allocate(void* context, size_t bytes, size_t alignment, void* stream,
                        void** pointer) {
  return guarded("fsccl_allocator_t.allocate", [&]() -> Status {
    if (!pointer) return fail(FSCCL_ERR_INVALID_ARGUMENT, "pointer is NULL");
    FSCCL_ASSIGN(const Ref<AllocatorObject> object, object_of(allocators, context));
    const uint64_t wanted = alignment ? alignment : kSourceAlignment;
    FSCCL_ASSIGN(*pointer,
                 object->blocks.allocate(object->source,
                                         {.bytes = bytes, .alignment = wanted, .stream = stream}));
    return success();
  });
}

fsccl_status_t deallocate(void* context, void* pointer, size_t bytes, void* stream) {
  return guarded("fsccl_allocator_t.deallocate", [&]() -> Status {
    FSCCL_ASSIGN(const Ref<AllocatorObject> object, object_of(allocators, context));
    return object->blocks.deallocate(pointer, bytes, stream);
  });
}

fsccl_status_t share(void* context, void* pointer, int* fd, uint64_t* offset) {
  return guarded("fsccl_allocator_t.share", [&]() -> Status {
    if (!fd || !offset) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is NULL", fd ? "offset" : "fd");
    FSCCL_ASSIGN(const Ref<AllocatorObject> object, object_of(allocators, context));
    FSCCL_TRY(object->blocks.check(pointer));
    FSCCL_ASSIGN(SharedMemory shared, object->source->share(pointer));
    *offset = shared.offset;
    *fd = shared.fd.release();
    return success();
  });
}

fsccl_status_t destroy(void* context) {
  return guarded("fsccl_allocator_t.destroy", [&]() -> Status {
    const auto may_end = [](AllocatorObject& object) {
      const uint64_t blocks = object.blocks.blocks();
      return !blocks ? success()
                     : fail(FSCCL_ERR_INVALID_STATE,
                            "{} block(s) of this allocator, with {} bytes, are out: give them back "
                            "first",
                            blocks, object.blocks.bytes());
    };
    {
      FSCCL_ASSIGN(const Ref<AllocatorObject> object, object_of(allocators, context));
      FSCCL_TRY(may_end(*object));
    }
    return allocators.end(bits_of(context), Deadline::in_ms(config()->timeout_ms), may_end)
        .take_status();
  });
}

// Makes the table of a source.
Status put_out(std::shared_ptr<MemorySource> source, const char* name,
               fsccl_allocator_t* allocator) {
  watch_forks();
  fsccl_allocator_t table = FSCCL_ALLOCATOR_INIT;
  table.name = name;
  table.memory = source->memory();
  table.device = source->device();
  auto object = std::make_unique<AllocatorObject>();
  object->source = std::move(source);
  FSCCL_ASSIGN(const uint64_t bits, allocators.add(std::move(object)));
  table.context = reinterpret_cast<void*>(bits);
  table.allocate = allocate;
  table.deallocate = deallocate;
  table.share = share;
  table.destroy = destroy;
  *allocator = table;
  return success();
}

// Makes an adaptor: `make` receives the source below it.
template <class Make>
fsccl_status_t adapt(const char* operation, const char* name, const fsccl_allocator_t* upstream,
                     fsccl_allocator_t* allocator, Make&& make) {
  return guarded(operation, [&]() -> Status {
    if (forked()) return forked_status();
    if (!allocator) return fail(FSCCL_ERR_INVALID_ARGUMENT, "allocator is NULL");
    FSCCL_ASSIGN(Upstream below, source_of(upstream));
    Result<Upstream> made = make(std::move(below));
    if (!made.ok()) return made.take_status();
    return put_out(made.take(), name, allocator);
  });
}

// The blocks of a pool as a source. The pool is looked up in each call, because it may be destroyed
// before the source.
class PoolBlocks : public EndSource {
 public:
  PoolBlocks(fsccl_pool_t handle, const Pool& pool)
      : pool_(handle), memory_(pool.memory()), device_(pool.device_ordinal()) {}
  fsccl_memory_t memory() const override { return memory_; }
  int device() const override { return device_; }

 private:
  Result<void*> make(const MemoryRequest& request) override {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(pool_));
    if (pool->dry_run())
      return fail(FSCCL_ERR_INVALID_STATE, "pool '{}' is a rehearsal (dry_run) and has no memory",
                  pool->name());
    if (memory_ == FSCCL_MEMORY_HOST && request.alignment > page_bytes())
      return fail(FSCCL_ERR_INVALID_ARGUMENT,
                  "the alignment is {}: blocks of a pool are aligned to {} at most",
                  request.alignment, page_bytes());
    return pool->alloc_block(request.bytes, request.stream, request.alignment);
  }
  Status give_back(void* pointer, const MemoryRequest& request) override {
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(pool_));
    return pool->free_block(pointer, request.stream);
  }

  const fsccl_pool_t pool_;
  const fsccl_memory_t memory_;
  const int device_;
};

}  // namespace

Result<std::shared_ptr<MemorySource>> source_of(const fsccl_allocator_t* table) {
  FSCCL_ASSIGN(const fsccl_allocator_t checked, read_table(table));
  if (checked.allocate != allocate || checked.deallocate != deallocate)
    return make_outside_source(checked);
  FSCCL_ASSIGN(const Ref<AllocatorObject> object, object_of(allocators, checked.context));
  return object->source;
}

}  // namespace fsccl

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_allocator_host(fsccl_allocator_t* allocator) {
  return guarded("fsccl_allocator_host", [&]() -> Status {
    if (forked()) return forked_status();
    if (!allocator) return fail(FSCCL_ERR_INVALID_ARGUMENT, "allocator is NULL");
    return put_out(make_host_source(), "host", allocator);
  });
}

fsccl_status_t fsccl_allocator_cuda(int device, fsccl_allocator_t* allocator) {
  return guarded("fsccl_allocator_cuda", [&]() -> Status {
    if (forked()) return forked_status();
    if (!allocator) return fail(FSCCL_ERR_INVALID_ARGUMENT, "allocator is NULL");
    FSCCL_ASSIGN(const cuda::Device* const found, cuda::Device::open(device));
    return put_out(make_device_source(*found), "cuda", allocator);
  });
}

fsccl_status_t fsccl_pool_allocator(fsccl_pool_t handle, fsccl_allocator_t* allocator) {
  return guarded("fsccl_pool_allocator", [&]() -> Status {
    if (!allocator) return fail(FSCCL_ERR_INVALID_ARGUMENT, "allocator is NULL");
    FSCCL_ASSIGN(const Ref<Pool> pool, pool_of(handle));
    return put_out(std::make_shared<PoolBlocks>(handle, *pool), "pool", allocator);
  });
}

fsccl_status_t fsccl_allocator_limit(const fsccl_allocator_t* upstream, uint64_t limit_bytes,
                                     fsccl_allocator_t* allocator) {
  return adapt("fsccl_allocator_limit", "limit", upstream, allocator,
               [&](Upstream below) -> Result<Upstream> {
                 return make_limit(std::move(below), limit_bytes);
               });
}

fsccl_status_t fsccl_allocator_count(const fsccl_allocator_t* upstream,
                                     fsccl_allocator_t* allocator) {
  return adapt(
      "fsccl_allocator_count", "statistics", upstream, allocator,
      [](Upstream below) -> Result<Upstream> { return make_statistics(std::move(below)); });
}

fsccl_status_t fsccl_allocator_stats(const fsccl_allocator_t* allocator,
                                     fsccl_allocator_stats_t* stats) {
  return guarded("fsccl_allocator_stats", [&]() -> Status {
    FSCCL_TRY(check_output(stats, "stats", "FSCCL_ALLOCATOR_STATS_INIT"));
    FSCCL_ASSIGN(Upstream source, source_of(allocator));
    fsccl_allocator_stats_t made = FSCCL_ALLOCATOR_STATS_INIT;
    if (read_statistics(*source, &made)) {
      fill_output(stats, made);
      return success();
    }
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "the allocator does not count: give the one that fsccl_allocator_count() made");
  });
}

fsccl_status_t fsccl_allocator_log(const fsccl_allocator_t* upstream, const char* path,
                                   fsccl_allocator_t* allocator) {
  return adapt("fsccl_allocator_log", "log", upstream, allocator,
               [&](Upstream below) -> Result<Upstream> {
                 if (!path) return fail(FSCCL_ERR_INVALID_ARGUMENT, "path is NULL");
                 return make_log(std::move(below), path);
               });
}

fsccl_status_t fsccl_allocator_guard(const fsccl_allocator_t* upstream,
                                     void (*report)(void* context, const char* text), void* context,
                                     fsccl_allocator_t* allocator) {
  return adapt("fsccl_allocator_guard", "guard", upstream, allocator, [&](Upstream below) {
    return make_guard(std::move(below), [report, context](const std::string& text) {
      if (report) return call_user("report()", [&] { report(context, text.c_str()); });
      FSCCL_LOG(kError, "{}", text);
    });
  });
}

fsccl_status_t fsccl_allocator_on_failure(const fsccl_allocator_t* upstream,
                                          uint64_t (*on_failure)(void* context, uint64_t bytes),
                                          void* context, fsccl_allocator_t* allocator) {
  return adapt("fsccl_allocator_on_failure", "on failure", upstream, allocator,
               [&](Upstream below) -> Result<Upstream> {
                 if (!on_failure) return fail(FSCCL_ERR_INVALID_ARGUMENT, "on_failure is NULL");
                 return make_on_failure(std::move(below), [on_failure, context](uint64_t bytes) {
                   return call_user("on_failure", uint64_t{0},
                                    [&] { return on_failure(context, bytes); });
                 });
               });
}

}  // extern "C"
