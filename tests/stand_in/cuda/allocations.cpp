// The driver's functions for device memory without handles, for host memory that devices can reach,
// and for kinds of addresses.
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "stream.h"

using namespace fsccl::stand_in;

namespace {

constexpr uint64_t kAlignment = 256;  // alignment of cuMemAlloc

uint64_t up(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Returns true if all of this memory is mapped in the process.
bool there(const void* pointer, size_t bytes) {
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)),
                 begin = reinterpret_cast<uint64_t>(pointer) / page * page;
  return msync(reinterpret_cast<void*>(begin),
               up(reinterpret_cast<uint64_t>(pointer) + bytes - begin, page), MS_ASYNC) == 0;
}

}  // namespace

namespace fsccl::stand_in {

// Behind an allocation lies a page that faults. The allocation ends as near to it as its alignment
// allows.
Code make_allocation(Device& device, DevicePointer* address, size_t bytes) {
  if (bytes > device.bytes || !device.charge(up(bytes, kAlignment))) return kOutOfMemory;
  const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE)), room = up(bytes, page);
  void* const raw =
      mmap(nullptr, room + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED || mprotect(raw, room, PROT_READ | PROT_WRITE) != 0) {
    if (raw != MAP_FAILED) munmap(raw, room + page);
    device.refund(up(bytes, kAlignment));
    return kOutOfMemory;
  }
  const uint64_t begin = reinterpret_cast<uint64_t>(raw);
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  *address = begin + room - up(bytes, kAlignment);
  m.allocations[*address] = {bytes, &device, begin, room + page};
  count("allocations", 1);
  return kSuccess;
}

Code release_allocation(Device& device, DevicePointer address) {
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  const auto found = m.allocations.find(address);
  if (found == m.allocations.end())
    return refuse("cuMemFree", kInvalidValue, "%llx is given back twice", address);
  munmap(reinterpret_cast<void*>(found->second.map_begin), found->second.map_bytes);
  device.refund(up(found->second.bytes, kAlignment));
  m.allocations.erase(found);
  count("allocations", -1);
  return kSuccess;
}

}  // namespace fsccl::stand_in

extern "C" {

Code cuMemGetInfo_v2(size_t* free, size_t* total) {
  if (const Code code = enter("cuMemGetInfo_v2", Needs::context)) return code;
  if (!free || !total) return refuse("cuMemGetInfo_v2", kInvalidValue, "a null pointer");
  *total = current()->bytes;
  *free = current()->bytes - current()->used;
  return kSuccess;
}

Code cuCtxSynchronize() {
  if (const Code code = enter("cuCtxSynchronize", Needs::unhindered)) return code;
  for (const auto& stream : streams_of(*current()))
    if (stream->capturing)
      return refuse("cuCtxSynchronize", kCaptureUnsupported,
                    "while a stream of the context is being captured");
  synchronise(*current());
  return kSuccess;
}

Code cuMemAlloc_v2(DevicePointer* address, size_t bytes) {
  if (const Code code = enter("cuMemAlloc_v2", Needs::unhindered)) return code;
  if (!address || !bytes) return refuse("cuMemAlloc_v2", kInvalidValue, "no bytes");
  return make_allocation(*current(), address, bytes);
}

// Waits for the device's streams before it frees the memory, as the driver does.
Code cuMemFree_v2(DevicePointer address) {
  if (const Code code = enter("cuMemFree_v2", Needs::unhindered)) return code;
  Memory& m = memory();
  Device* device = nullptr;
  {
    const std::shared_lock lock(m.mutex);
    const auto found = m.allocations.find(address);
    if (found == m.allocations.end())
      return refuse("cuMemFree_v2", kInvalidValue, "%llx was not allocated, or is free", address);
    device = found->second.device;
  }
  synchronise(*device);
  return release_allocation(*device, address);
}

Code cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned flags) {
  if (const Code code = enter("cuMemHostRegister_v2", Needs::unhindered)) return code;
  const uint64_t begin = reinterpret_cast<uint64_t>(pointer);
  if (!pointer || !bytes || (flags & ~3u) || begin + bytes < begin || !there(pointer, bytes))
    return refuse("cuMemHostRegister_v2", kInvalidValue, "%zu bytes at %p, flags %u", bytes,
                  pointer, flags);
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  if (overlaps(m.registrations, begin, bytes))
    return refuse("cuMemHostRegister_v2", kAlreadyRegistered, "%p", pointer);
  if (overlaps(m.reservations, begin, bytes) || overlaps(m.allocations, begin, bytes))
    return refuse("cuMemHostRegister_v2", kInvalidValue, "%p is memory of a device", pointer);
  m.registrations[begin] = {bytes, flags, current()};
  count("registrations", 1);
  return kSuccess;
}

Code cuMemHostUnregister(void* pointer) {
  if (const Code code = enter("cuMemHostUnregister", Needs::unhindered)) return code;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  if (!m.registrations.erase(reinterpret_cast<uint64_t>(pointer)))
    return refuse("cuMemHostUnregister", kNotRegistered, "%p", pointer);
  count("registrations", -1);
  return kSuccess;
}

Code cuMemHostGetDevicePointer_v2(DevicePointer* device, void* host, unsigned flags) {
  if (const Code code = enter("cuMemHostGetDevicePointer_v2", Needs::context)) return code;
  Memory& m = memory();
  const std::shared_lock lock(m.mutex);
  const uint64_t address = reinterpret_cast<uint64_t>(host);
  const auto found = covering(m.registrations, address, bytes_of);
  if (!device || flags || found == m.registrations.end() || !(found->second.flags & 2))
    return refuse("cuMemHostGetDevicePointer_v2", kInvalidValue, "%p is not registered for devices",
                  host);
  *device = address;
  return kSuccess;
}

// Finds the allocation or the mapping in which an address lies. Mappings that lie end to end are
// not one range.
Code cuMemGetAddressRange_v2(DevicePointer* begin, size_t* bytes, DevicePointer address) {
  if (const Code code = enter("cuMemGetAddressRange_v2")) return code;
  Memory& m = memory();
  const std::shared_lock lock(m.mutex);
  const auto found = [&](const auto& map, uint64_t size) {
    if (begin) *begin = map->first;
    if (bytes) *bytes = size;
    return kSuccess;
  };
  if (const auto one = covering(m.allocations, address, bytes_of); one != m.allocations.end())
    return found(one, one->second.bytes);
  if (const auto one = covering(m.mappings, address, bytes_of); one != m.mappings.end())
    return found(one, one->second.bytes);
  return kInvalidValue;
}

// It breaks no rule to ask about an address that CUDA does not know.
Code cuPointerGetAttribute(void* value, int which, DevicePointer address) {
  if (const Code code = enter("cuPointerGetAttribute")) return code;
  unsigned type = 0;
  int ordinal = 0;
  if (!value || (which != 2 && which != 9))
    return refuse("cuPointerGetAttribute", kInvalidValue, "attribute %d", which);
  if (!memory().where(address, &type, &ordinal)) return kInvalidValue;
  if (which == 2)
    *static_cast<unsigned*>(value) = type;
  else
    *static_cast<int*>(value) = ordinal;
  return kSuccess;
}

}  // extern "C"
