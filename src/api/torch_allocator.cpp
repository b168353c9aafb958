// The two functions that PyTorch's CUDAPluggableAllocator loads by name
// (torch/csrc/cuda/CUDAPluggableAllocator.cpp). PyTorch asks for size 0 for empty tensors and never
// frees NULL. A MemPool takes NULL for any other size as out of memory.
#include <map>
#include <mutex>

#include "api/allocators.h"
#include "api/block_table.h"
#include "api/guard.h"
#include "base/fork.h"
#include "base/immortal.h"
#include "base/log.h"

namespace fsccl {
namespace {

// It outlives the threads and destructors in which PyTorch frees memory.
struct Devices {
  std::mutex mutex;
  std::map<int, std::shared_ptr<MemorySource>> current;
  BlockTable blocks;
};
Devices& devices() {
  static Immortal<Devices> all;
  return all.get();
}

// alignment that PyTorch's kernels may expect: that of its own allocator
constexpr uint64_t kAlignment = 512;

Status told(Status status) {
  if (!status.ok()) FSCCL_LOG(kWarn, "for PyTorch: {}", status.text());
  return status;
}

Result<void*> serve(ssize_t size, int device, void* stream) {
  if (forked()) return forked_status();
  if (size < 0) return fail(FSCCL_ERR_INVALID_ARGUMENT, "size is {}", size);
  std::shared_ptr<MemorySource> source;
  {
    const std::lock_guard lock(devices().mutex);
    const auto found = devices().current.find(device);
    if (found != devices().current.end()) source = found->second;
  }
  if (!source)
    return fail(FSCCL_ERR_INVALID_STATE,
                "no allocator serves device {}: call fsccl_torch_use() first", device);
  return devices().blocks.allocate(
      source, {.bytes = static_cast<uint64_t>(size), .alignment = kAlignment, .stream = stream});
}

}  // namespace
}  // namespace fsccl

using namespace fsccl;

extern "C" {

fsccl_status_t fsccl_torch_use(int device, const fsccl_allocator_t* allocator) {
  return guarded("fsccl_torch_use", [&]() -> Status {
    if (forked()) return forked_status();
    if (device < 0)
      return fail(FSCCL_ERR_INVALID_ARGUMENT, "device is {}: it must be 0 or more", device);
    std::shared_ptr<MemorySource> source;
    if (allocator) {
      FSCCL_ASSIGN(source, source_of(allocator));
      if (source->memory() == FSCCL_MEMORY_CUDA && source->device() != device)
        return fail(FSCCL_ERR_INVALID_ARGUMENT,
                    "the allocator gives memory of device {}, and is to serve device {}",
                    source->device(), device);
    }
    const std::lock_guard lock(devices().mutex);
    if (source) {
      devices().current[device] = std::move(source);
    } else {
      devices().current.erase(device);
    }
    return success();
  });
}

void* fsccl_torch_malloc(ssize_t size, int device, void* stream) {
  void* pointer = nullptr;
  if (size == 0) return pointer;
  (void)guarded("fsccl_torch_malloc", [&]() -> Status {
    Result<void*> block = serve(size, device, stream);
    if (!block.ok()) return told(block.take_status());
    pointer = block.value();
    return success();
  });
  return pointer;
}

void fsccl_torch_free(void* pointer, ssize_t size, int, void* stream) {
  if (!pointer) return;
  (void)guarded("fsccl_torch_free", [&]() -> Status {
    if (forked()) return forked_status();
    return told(devices().blocks.deallocate(pointer, static_cast<uint64_t>(size), stream));
  });
}

}  // extern "C"
