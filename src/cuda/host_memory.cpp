#include "cuda/host_memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "base/immortal.h"

namespace fsccl::cuda {
namespace {

constexpr size_t kLine = 64, kPage = 4096, kRegistered = 64 << 10;

}  // namespace

HostMemory& HostMemory::of(const Device& device) {
  static std::mutex mutex;
  static Immortal<std::map<const Device*, HostMemory>> all;
  const std::lock_guard lock(mutex);
  return all.get().try_emplace(&device, device).first->second;
}

// Registers one larger range for many small requests.
Status HostMemory::add(size_t size) {
  const size_t bytes = std::max(size, kRegistered);
  void* const memory = std::aligned_alloc(kPage, bytes);
  if (!memory) return fail(FSCCL_ERR_OUT_OF_MEMORY, "no {} bytes for a device to write to", bytes);
  std::memset(memory, 0, bytes);
  const Driver& driver = device_.driver();
  CUdeviceptr device = 0;
  Status status =
      device_.check("cuMemHostRegister",
                    driver.cuMemHostRegister(
                        memory, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP));
  if (!status.ok()) {
    std::free(memory);
    return status;
  }
  status = device_.check("cuMemHostGetDevicePointer",
                         driver.cuMemHostGetDevicePointer(&device, memory, 0));
  if (!status.ok()) {
    (void)driver.cuMemHostUnregister(memory);
    std::free(memory);
    return status;
  }
  for (size_t at = 0; at < bytes; at += size)
    spare_.emplace(size, Chunk{static_cast<std::byte*>(memory) + at, device + at});
  return success();
}

Result<std::unique_ptr<HostMemory::Bytes>> HostMemory::take(size_t bytes) {
  const size_t size = std::bit_ceil(std::max(bytes, kLine));
  const std::lock_guard lock(mutex_);
  if (!spare_.contains(size)) FSCCL_TRY(add(size));
  auto taken = std::make_unique<Bytes>(*this);
  taken->memory_ = spare_.extract(spare_.find(size));
  return taken;
}

void HostMemory::give_back(Spare::node_type memory) {
  const std::lock_guard lock(mutex_);
  spare_.insert(std::move(memory));
}

}  // namespace fsccl::cuda
