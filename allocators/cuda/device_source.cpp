#include "allocators/cuda/device_source.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "allocators/cuda/device_arena.h"

namespace fsccl {
namespace {

class DeviceSource : public EndSource {
 public:
  explicit DeviceSource(const cuda::Device& device) : device_(device) {}
  fsccl_memory_t memory() const override { return FSCCL_MEMORY_CUDA; }
  int device() const override { return device_.ordinal(); }
  bool is_system() const override { return true; }  // segments of a pool are mapped by others, at places of its own

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
  Status give_back(void* pointer, const MemoryRequest&) override {
    const std::lock_guard lock(mutex_);
    if (blocks_.erase(pointer) == 1) return success();
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} is not a block of device {}, or was given back before", pointer, device_.ordinal());
  }

  const cuda::Device& device_;
  std::mutex mutex_;
  std::unordered_map<void*, DeviceArena> blocks_;
};

}  // namespace

std::shared_ptr<MemorySource> make_device_source(const cuda::Device& device) { return std::make_shared<DeviceSource>(device); }

}  // namespace fsccl
