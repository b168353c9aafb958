// A source of memory as the library sees it, and what adaptors share. The form in C is
// fsccl_allocator_t (fsccl/allocator.h): outside_source.h makes a source of such a table, and
// api/allocators.cpp makes a table of a source.
//
//   adaptor -> adaptor -> end
//
// The growth of a pool goes down its stack too, so that adaptors see it and may refuse it. At the
// end of the stack the pool's own arena carries it out, because its ranges have fixed places
// (MemoryRequest::growth).
//
// Thread rules: any thread may call any function.
#pragma once
#include <cstdint>
#include <memory>
#include <utility>

#include "base/fd.h"
#include "base/status.h"

namespace fsccl {

inline constexpr uint64_t kSourceAlignment = 64;

// A range of a pool's addresses that is to get memory. Only the pool's arena can provide it,
// because the range has a fixed place.
class PoolGrowth {
 public:
  virtual Result<void*> reserve(uint64_t bytes) = 0;

 protected:
  ~PoolGrowth() = default;
};

struct MemoryRequest {
  uint64_t bytes = 0;
  uint64_t alignment = kSourceAlignment;  // a power of two
  void* stream = nullptr;
  PoolGrowth* growth = nullptr;  // growth of a pool; null: the source's own memory
};

// The place of a block in a file.
struct SharedMemory {
  Fd fd;
  uint64_t offset = 0;
};

class EndSource;

class MemorySource {
 public:
  virtual ~MemorySource() = default;
  virtual Result<void*> allocate(const MemoryRequest& request) = 0;
  // `request` has the `bytes` and the `growth` that allocate() received for this memory. A pool may
  // give a growth back in several parts of whole pages.
  virtual Status deallocate(void* pointer, const MemoryRequest& request) = 0;
  virtual Result<SharedMemory> share(void* pointer) = 0;
  virtual fsccl_memory_t memory() const = 0;
  virtual int device() const { return 0; }
  // Returns the end of the stack, or an error if a pool cannot use this stack.
  virtual Result<EndSource*> end() = 0;
};

class EndSource : public MemorySource {
 public:
  Result<void*> allocate(const MemoryRequest& request) final {
    return request.growth ? request.growth->reserve(request.bytes) : make(request);
  }
  Status deallocate(void* pointer, const MemoryRequest& request) final {
    return request.growth ? success() : give_back(pointer, request);
  }
  Result<SharedMemory> share(void*) override {
    return fail(FSCCL_ERR_NOT_AVAILABLE, "this memory has no file that other processes could map");
  }
  fsccl_memory_t memory() const override { return FSCCL_MEMORY_HOST; }
  Result<EndSource*> end() final { return this; }
  // Returns true if a pool does not use memory of this source, but an arena that it makes itself.
  virtual bool is_system() const { return false; }

 private:
  virtual Result<void*> make(const MemoryRequest& request) = 0;
  virtual Status give_back(void* pointer, const MemoryRequest& request) = 0;
};

class Adaptor : public MemorySource {
 public:
  explicit Adaptor(std::shared_ptr<MemorySource> upstream) : upstream_(std::move(upstream)) {}
  Status deallocate(void* pointer, const MemoryRequest& request) override {
    return upstream_->deallocate(pointer, request);
  }
  Result<SharedMemory> share(void* pointer) override { return upstream_->share(pointer); }
  fsccl_memory_t memory() const final { return upstream_->memory(); }
  int device() const final { return upstream_->device(); }
  Result<EndSource*> end() override { return upstream_->end(); }

 protected:
  const std::shared_ptr<MemorySource> upstream_;
};

}  // namespace fsccl
