// This adaptor counts calls and bytes. All figures of one reading are of the same moment.
#include <algorithm>
#include <mutex>

#include "allocators/adaptors/adaptors.h"

namespace fsccl {
namespace {

class Statistics : public Adaptor {
 public:
  using Adaptor::Adaptor;

  Result<void*> allocate(const MemoryRequest& request) override {
    Result<void*> result = upstream_->allocate(request);
    const std::lock_guard lock(mutex_);
    if (!result.ok()) {
      counts_.failures++;
      return result;
    }
    counts_.allocations++;
    counts_.total_bytes += request.bytes;
    counts_.live_bytes += request.bytes;
    counts_.peak_bytes = std::max(counts_.peak_bytes, counts_.live_bytes);
    return result;
  }
  Status deallocate(void* pointer, const MemoryRequest& request) override {
    // The block is given back even if upstream reports an error.
    Status status = upstream_->deallocate(pointer, request);
    const std::lock_guard lock(mutex_);
    counts_.frees++;
    counts_.live_bytes -= request.bytes;
    return status;
  }
  fsccl_allocator_stats_t read() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  fsccl_allocator_stats_t counts_ = FSCCL_ALLOCATOR_STATS_INIT;
};

}  // namespace

Upstream make_statistics(Upstream upstream) {
  return std::make_shared<Statistics>(std::move(upstream));
}

bool read_statistics(const MemorySource& source, fsccl_allocator_stats_t* stats) {
  const auto* const counting = dynamic_cast<const Statistics*>(&source);
  if (!counting) return false;
  const size_t size = stats->size;
  *stats = counting->read();
  stats->size = size;
  return true;
}

}  // namespace fsccl
