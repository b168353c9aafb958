// This adaptor limits the sum of the bytes that are allocated and not yet given back. It counts a
// request before it asks upstream, so several threads cannot exceed the limit together.
#include <atomic>

#include "allocators/adaptors/adaptors.h"

namespace fsccl {
namespace {

class LimitAdaptor : public Adaptor {
 public:
  LimitAdaptor(Upstream upstream, uint64_t limit) : Adaptor(std::move(upstream)), limit_(limit) {}

  Result<void*> allocate(const MemoryRequest& request) override {
    uint64_t out = out_.load(std::memory_order_relaxed);
    do {
      if (request.bytes > limit_ - out)
        return fail(
            FSCCL_ERR_OUT_OF_MEMORY,
            "{} bytes are out and {} more would pass the limit of {} bytes: free some, or raise it",
            out, request.bytes, limit_);
    } while (!out_.compare_exchange_weak(out, out + request.bytes, std::memory_order_relaxed));
    Result<void*> result = upstream_->allocate(request);
    if (!result.ok()) out_ -= request.bytes;
    return result;
  }
  Status deallocate(void* pointer, const MemoryRequest& request) override {
    // The block is given back even if upstream reports an error.
    Status status = upstream_->deallocate(pointer, request);
    out_ -= request.bytes;
    return status;
  }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> out_{0};  // never above limit_
};

}  // namespace

Upstream make_limit(Upstream upstream, uint64_t limit_bytes) {
  return std::make_shared<LimitAdaptor>(std::move(upstream), limit_bytes);
}

}  // namespace fsccl
