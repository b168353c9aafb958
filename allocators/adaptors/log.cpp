// This adaptor logs each call. It writes each line to the file at once, so that the line is there
// even if the program crashes right after the call.
#include <chrono>
#include <mutex>

#include "allocators/adaptors/adaptors.h"
#include "allocators/placement/allocation_log.h"

namespace fsccl {
namespace {

class Log : public Adaptor {
 public:
  Log(Upstream upstream, std::unique_ptr<AllocationLog> log)
      : Adaptor(std::move(upstream)), log_(std::move(log)) {}

  Result<void*> allocate(const MemoryRequest& request) override {
    Result<void*> result = upstream_->allocate(request);
    const std::lock_guard lock(mutex_);
    if (result.ok()) {
      log_->allocate(now_us(), number(result.value()), request.bytes, number(request.stream));
    } else {
      log_->failure(now_us(), request.bytes, number(request.stream));
    }
    log_->flush();
    return result;
  }
  // The line is written before the memory is given back: another thread may then get the same
  // address at once, and the line of that allocation must come later.
  Status deallocate(void* pointer, const MemoryRequest& request) override {
    {
      const std::lock_guard lock(mutex_);
      log_->free(now_us(), number(pointer), request.bytes, number(request.stream));
      log_->flush();
    }
    return upstream_->deallocate(pointer, request);
  }

 private:
  static uint64_t number(const void* address) { return reinterpret_cast<uint64_t>(address); }
  static int64_t now_us() {
    return std::chrono::duration_cast<std::chrono::microseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }

  std::mutex mutex_;
  const std::unique_ptr<AllocationLog> log_;
};

}  // namespace

Result<Upstream> make_log(Upstream upstream, const std::string& path) {
  FSCCL_ASSIGN(std::unique_ptr<AllocationLog> log,
               AllocationLog::open(path, "the log of allocations"));
  return Upstream(std::make_shared<Log>(std::move(upstream), std::move(log)));
}

}  // namespace fsccl
