#include "allocators/cuda/device_source.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "allocators/cuda/device_arena.h"
#include "base/fork.h"

namespace fsccl {
namespace {

class DeviceSource : public EndSource {
 public:
  explicit DeviceSource(const cuda::Device& device) : device_(device) {}
  // Blocks that are left here were never given back, or give_back() could not wait for their
  // stream. The destructor waits for the whole context, and leaks the blocks if it cannot.
  ~DeviceSource() override {
    if (blocks_.empty() || forked() || finish(nullptr).ok()) return;
    for (auto& [pointer, arena] : blocks_) arena.leak();
  }
  fsccl_memory_t memory() const override { return FSCCL_MEMORY_CUDA; }
  int device() const override { return device_.ordinal(); }
  // A pool does not use memory of this source: other ranks map its segments, so it makes its own.
  bool is_system() const override { return true; }

 private:
  Result<void*> make(const MemoryRequest& request) override {
    const uint64_t bytes = std::max<uint64_t>(request.bytes, 1);
    FSCCL_ASSIGN(DeviceArena arena, DeviceArena::reserve(device_, bytes, request.alignment));
    FSCCL_TRY(arena.grow(bytes));
    void* const pointer = reinterpret_cast<void*>(arena.base());
    const std::lock_guard lock(mutex_);
    blocks_.emplace(pointer, std::move(arena));
    return pointer;
  }
  // If the stream of a block cannot be waited for, the block stays as long as the source lives.
  Status give_back(void* pointer, const MemoryRequest& request) override {
    FSCCL_TRY(finish(static_cast<cuda::CUstream>(request.stream)));
    std::unique_lock lock(mutex_);
    const auto ended = blocks_.extract(pointer);
    lock.unlock();
    if (!ended.empty()) return success();
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} is not a block of device {}, or was given back before", pointer,
                device_.ordinal());
  }
  Status finish(cuda::CUstream stream) const {
    const cuda::Current current(device_);
    const cuda::Driver& driver = device_.driver();
    FSCCL_ASSIGN(const bool capturing, device_.capturing(stream));
    if (capturing)
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "a block of device {} is given back on stream {} while that is being captured, "
                  "and cannot be waited for: it stays",
                  device_.ordinal(), static_cast<void*>(stream));
    return cuda::is_legacy(stream)
               ? device_.check("cuCtxSynchronize", driver.cuCtxSynchronize())
               : device_.check("cuStreamSynchronize", driver.cuStreamSynchronize(stream));
  }

  const cuda::Device& device_;
  std::mutex mutex_;
  std::unordered_map<void*, DeviceArena> blocks_;
};

}  // namespace

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device) {
  return std::make_shared<DeviceSource>(device);
}

}  // namespace fsccl
