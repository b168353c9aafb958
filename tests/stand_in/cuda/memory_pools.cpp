// The driver's functions for its own pool of device memory, in stream order. Freed memory is gone
// when its stream has come to the free. The pool keeps nothing, whatever its threshold, so it
// reserves only the live bytes.
#include <algorithm>
#include <map>
#include <mutex>

#include "memory.h"
#include "stream.h"

using namespace fsccl::stand_in;

namespace {

struct Pool {
  Device* device = nullptr;
  std::mutex mutex;
  uint64_t threshold = 0, reserved = 0, high = 0;

  void change(uint64_t more, uint64_t less) {
    const std::lock_guard lock(mutex);
    reserved += more - less;
    high = std::max(high, reserved);
  }
};
enum Figure : int { kThreshold = 4, kReserved = 5, kMostReserved = 6 };

// Returns the pool of the device. Each device has one, which is never destroyed.
Pool* pool_of(Device* device) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const pools = new std::map<Device*, Pool*>;
  const std::lock_guard lock(*mutex);
  Pool*& found = (*pools)[device];
  if (!found) found = new Pool{.device = device};
  return found;
}

Code release(Device& device, DevicePointer address, uint64_t bytes) {
  if (const Code code = release_allocation(device, address)) return code;
  pool_of(&device)->change(0, bytes);
  return kSuccess;
}

}  // namespace

extern "C" {

Code cuDeviceGetDefaultMemPool(Pool** pool, int ordinal) {
  if (const Code code = enter("cuDeviceGetDefaultMemPool")) return code;
  Device* const device = device_at(ordinal);
  if (!pool || !device)
    return refuse("cuDeviceGetDefaultMemPool", kInvalidValue, "device %d", ordinal);
  *pool = pool_of(device);
  return kSuccess;
}

Code cuMemPoolSetAttribute(Pool* pool, int which, void* value) {
  if (const Code code = enter("cuMemPoolSetAttribute")) return code;
  const uint64_t number = *static_cast<uint64_t*>(value);
  const std::lock_guard lock(pool->mutex);
  if (which == kThreshold) return pool->threshold = number, kSuccess;
  if (which != kMostReserved || number)
    return refuse("cuMemPoolSetAttribute", kInvalidValue, "attribute %d to %llu", which,
                  static_cast<unsigned long long>(number));
  pool->high = pool->reserved;
  return kSuccess;
}

Code cuMemPoolGetAttribute(Pool* pool, int which, void* value) {
  if (const Code code = enter("cuMemPoolGetAttribute")) return code;
  if (which < kThreshold || which > kMostReserved)
    return refuse("cuMemPoolGetAttribute", kInvalidValue, "attribute %d", which);
  const std::lock_guard lock(pool->mutex);
  *static_cast<uint64_t*>(value) = which == kThreshold  ? pool->threshold
                                   : which == kReserved ? pool->reserved
                                                        : pool->high;
  return kSuccess;
}

Code cuMemPoolTrimTo(Pool*, size_t) { return enter("cuMemPoolTrimTo"); }

Code cuMemAllocAsync(DevicePointer* address, size_t bytes, StreamHandle handle) {
  if (const Code code = enter("cuMemAllocAsync", Needs::context)) return code;
  const auto stream = stream_of(handle);
  if (!stream || !address || !bytes)
    return refuse("cuMemAllocAsync", kInvalidValue, "%zu bytes on stream %p", bytes, handle);
  Code code = make_allocation(stream->device, address, bytes);
  if (code == kOutOfMemory) {  // waits for streams that have memory to free
    synchronise(stream->device);
    code = make_allocation(stream->device, address, bytes);
  }
  if (code) return code;
  pool_of(&stream->device)->change(bytes, 0);
  return kSuccess;
}

Code cuMemFreeAsync(DevicePointer address, StreamHandle handle) {
  if (const Code code = enter("cuMemFreeAsync", Needs::context)) return code;
  const auto stream = stream_of(handle);
  Memory& m = memory();
  Allocation found;
  {
    const std::shared_lock lock(m.mutex);
    const auto allocation = m.allocations.find(address);
    if (!stream || allocation == m.allocations.end())
      return refuse("cuMemFreeAsync", kInvalidValue, "%llx on stream %p", address, handle);
    found = allocation->second;
  }
  submit(stream, {}, [address, bytes = found.bytes, device = found.device] {
    return release(*device, address, bytes);
  });
  return kSuccess;
}

}  // extern "C"
