// The driver's functions for virtual memory. Physical memory is a memfd, a reservation is a range
// of addresses without access rights, and a mapping maps the file there. Other processes get a
// descriptor, or a fabric handle that says where to find one.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>

#include "memory.h"
#include "stream.h"

using namespace fsccl::stand_in;

namespace {

// The name of the stand-in's memfds, which contains the physical device.
constexpr char kName[] = "fsccl_stand_in_gpu";

struct Fabric {
  char magic[16];
  int32_t process, fd;
  uint64_t inode;
};
constexpr char kMagic[16] = "fsccl stand-in";

bool whole(uint64_t bytes) { return bytes && bytes % kGranularity == 0; }
void* pointer(uint64_t address) { return reinterpret_cast<void*>(address); }

int supported_handles(const Device& device) {
  int posix = 0, fabric = 0;
  attribute(103, &posix, device);
  attribute(128, &fabric, device);
  return (posix ? kPosixHandle : 0) | (fabric ? kFabricHandle : 0);
}

Code import_descriptor(int fd, MemoryHandle* handle) {  // takes ownership of fd
  char name[64] = "", link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  struct stat file = {};
  const ssize_t length = readlink(link, name, sizeof name - 1);
  const std::string prefix = std::string("/memfd:") + kName;
  if (length < 0 || std::string(name, 0, prefix.size()) != prefix || fstat(fd, &file) != 0) {
    close(fd);
    return kInvalidValue;
  }
  auto physical = std::make_shared<Physical>();
  physical->fd = fd;
  physical->bytes = static_cast<uint64_t>(file.st_size);
  for (const Device* const device : devices())
    if (std::string(name).rfind(prefix + std::to_string(device->physical) + " ", 0) == 0)
      physical->ordinal = device->ordinal;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(physical);
  count("handles", 1);
  return kSuccess;
}

// Finds the mappings from `begin` on that make up exactly `bytes`. Returns false if they do not.
bool exactly(Memory& m, uint64_t begin, uint64_t bytes) {
  uint64_t at = begin;
  while (at < begin + bytes) {
    const auto mapping = m.mappings.find(at);
    if (mapping == m.mappings.end()) return false;
    at += mapping->second.bytes;
  }
  return at == begin + bytes;
}

void* without_rights(uint64_t begin, uint64_t bytes) {
  return mmap(pointer(begin), bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (begin ? MAP_FIXED : 0), -1, 0);
}

}  // namespace

extern "C" {

Code cuMemGetAllocationGranularity(size_t* bytes, const AllocationProperties* properties, int) {
  if (const Code code = enter("cuMemGetAllocationGranularity")) return code;
  if (!bytes || !properties || properties->type != kPinned ||
      properties->location.type != kOnDevice || !device_at(properties->location.id))
    return refuse("cuMemGetAllocationGranularity", kInvalidValue,
                  "properties of no memory of a device");
  *bytes = kGranularity;
  return kSuccess;
}

Code cuMemAddressReserve(DevicePointer* address, size_t bytes, size_t alignment, DevicePointer,
                         unsigned long long flags) {
  if (const Code code = enter("cuMemAddressReserve")) return code;
  if (!address || !whole(bytes) || flags || (alignment & (alignment - 1)))
    return refuse("cuMemAddressReserve", kInvalidValue, "%zu bytes aligned to %zu", bytes,
                  alignment);
  const uint64_t multiple = alignment > kGranularity ? alignment : kGranularity;
  void* const raw = bytes + multiple > bytes ? without_rights(0, bytes + multiple) : MAP_FAILED;
  if (raw == MAP_FAILED) return kOutOfMemory;
  const uint64_t begin = reinterpret_cast<uint64_t>(raw),
                 aligned = (begin + multiple - 1) / multiple * multiple;
  if (aligned > begin) munmap(raw, aligned - begin);
  munmap(pointer(aligned + bytes), begin + multiple - aligned);
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  m.reservations[aligned] = bytes;
  count("reservations", 1);
  *address = aligned;
  return kSuccess;
}

Code cuMemAddressFree(DevicePointer address, size_t bytes) {
  if (const Code code = enter("cuMemAddressFree")) return code;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  const auto found = m.reservations.find(address);
  if (found == m.reservations.end() || found->second != bytes)
    return refuse("cuMemAddressFree", kInvalidValue, "%zu bytes at %llx were not reserved so",
                  bytes, address);
  if (overlaps(m.mappings, address, bytes))
    return refuse("cuMemAddressFree", kInvalidValue, "%llx is still mapped", address);
  munmap(pointer(address), bytes);
  m.reservations.erase(found);
  count("reservations", -1);
  return kSuccess;
}

Code cuMemCreate(MemoryHandle* handle, size_t bytes, const AllocationProperties* properties,
                 unsigned long long flags) {
  if (const Code code = enter("cuMemCreate")) return code;
  if (!handle || !properties || flags || !whole(bytes) || properties->type != kPinned ||
      properties->location.type != kOnDevice)
    return refuse("cuMemCreate", kInvalidValue, "%zu bytes, or properties of no memory of a device",
                  bytes);
  Device* const device = device_at(properties->location.id);
  if (!device) return refuse("cuMemCreate", kInvalidDevice, "device %d", properties->location.id);
  if (properties->handles & ~supported_handles(*device))
    return refuse("cuMemCreate", kNotSupported, "handles of kind %d", properties->handles);
  if (!device->charge(bytes)) return kOutOfMemory;
  const int fd = memfd_create((kName + std::to_string(device->physical)).c_str(),
                              MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    if (fd >= 0) close(fd);
    device->refund(bytes);
    return kOutOfMemory;
  }
  auto physical = std::make_shared<Physical>();
  physical->fd = fd;
  physical->bytes = bytes;
  physical->handles = properties->handles;
  physical->charged = device;
  physical->ordinal = device->ordinal;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  *handle = m.next_handle++;
  m.handles[*handle] = std::move(physical);
  count("handles", 1);
  return kSuccess;
}

Code cuMemRelease(MemoryHandle handle) {
  if (const Code code = enter("cuMemRelease")) return code;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  if (!m.handles.erase(handle))
    return refuse("cuMemRelease", kInvalidValue, "handle %llx, which is none, or is released",
                  handle);
  count("handles", -1);
  return kSuccess;
}

Code cuMemMap(DevicePointer address, size_t bytes, size_t offset, MemoryHandle handle,
              unsigned long long flags) {
  if (const Code code = enter("cuMemMap")) return code;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  const auto found = m.handles.find(handle);
  if (found == m.handles.end())
    return refuse("cuMemMap", kInvalidValue, "handle %llx, which is none, or is released", handle);
  if (flags || offset || !whole(bytes) || address % kGranularity || bytes > found->second->bytes)
    return refuse("cuMemMap", kInvalidValue, "%zu bytes at %llx of memory of %llu", bytes, address,
                  static_cast<unsigned long long>(found->second->bytes));
  const auto reservation = covering(m.reservations, address, bytes_of);
  if (reservation == m.reservations.end() ||
      bytes > reservation->first + reservation->second - address)
    return refuse("cuMemMap", kInvalidValue, "%llx is not reserved", address);
  if (overlaps(m.mappings, address, bytes))
    return refuse("cuMemMap", kInvalidValue, "%llx is mapped already", address);
  if (mmap(pointer(address), bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, found->second->fd, 0) ==
      MAP_FAILED)
    return kOutOfMemory;
  Mapping mapping;
  mapping.bytes = bytes;
  mapping.physical = found->second;
  m.mappings[address] = std::move(mapping);
  count("mappings", 1);
  return kSuccess;
}

// Unmaps without waiting, even if CUDA waits, because CUDA's documentation does not promise that.
// If work on the memory is still to be done, a rule is broken at once, and the work accesses
// nothing when its turn comes.
Code cuMemUnmap(DevicePointer address, size_t bytes) {
  if (const Code code = enter("cuMemUnmap")) return code;
  for (Device* const device : devices())
    for (const auto& stream : streams_of(*device))
      if (stream->touches({address, bytes}))
        refuse("cuMemUnmap", kInvalidValue, "%zu bytes at %llx that a stream has still to use",
               bytes, address);
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  if (!whole(bytes) || !exactly(m, address, bytes))
    return refuse("cuMemUnmap", kInvalidValue, "%zu bytes at %llx are not what was mapped", bytes,
                  address);
  if (without_rights(address, bytes) == MAP_FAILED) return kOutOfMemory;
  for (auto mapping = m.mappings.find(address);
       mapping != m.mappings.end() && mapping->first < address + bytes;) {
    mapping = m.mappings.erase(mapping);
    count("mappings", -1);
  }
  return kSuccess;
}

Code cuMemSetAccess(DevicePointer address, size_t bytes, const AccessDescription* access,
                    size_t descriptions) {
  if (const Code code = enter("cuMemSetAccess")) return code;
  for (size_t i = 0; access && i < descriptions; i++)  // waits, as CUDA's documentation says
    if (Device* const device = device_at(access[i].location.id)) synchronise(*device);
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  if (!access || !descriptions || !whole(bytes) || !exactly(m, address, bytes))
    return refuse("cuMemSetAccess", kInvalidValue, "%zu bytes at %llx are not what was mapped",
                  bytes, address);
  for (size_t i = 0; i < descriptions; i++)
    if (access[i].location.type != kOnDevice || !device_at(access[i].location.id) ||
        access[i].flags < 0 || access[i].flags > 3 || access[i].flags == 2)
      return refuse("cuMemSetAccess", kInvalidValue, "a description of no device's access");
  for (auto mapping = m.mappings.find(address);
       mapping != m.mappings.end() && mapping->first < address + bytes; ++mapping) {
    Mapping& there = mapping->second;
    for (size_t i = 0; i < descriptions; i++) {
      const uint64_t bit = uint64_t{1} << access[i].location.id;
      there.readers = access[i].flags & 1 ? there.readers | bit : there.readers & ~bit;
      there.writers = access[i].flags & 2 ? there.writers | bit : there.writers & ~bit;
    }
    const int rights = (there.readers ? PROT_READ : 0) | (there.writers ? PROT_WRITE : 0);
    if (mprotect(pointer(mapping->first), there.bytes, rights) != 0) return kOutOfMemory;
  }
  return kSuccess;
}

// Returns one more handle of the physical memory that is mapped there. Memory of cuMemAlloc() has
// no handle.
Code cuMemRetainAllocationHandle(MemoryHandle* handle, void* address) {
  if (const Code code = enter("cuMemRetainAllocationHandle")) return code;
  Memory& m = memory();
  const std::unique_lock lock(m.mutex);
  const auto mapping = covering(m.mappings, reinterpret_cast<uint64_t>(address), bytes_of);
  if (!handle || mapping == m.mappings.end()) return kInvalidValue;
  *handle = m.next_handle++;
  m.handles[*handle] = mapping->second.physical;
  count("handles", 1);
  return kSuccess;
}

Code cuMemExportToShareableHandle(void* shareable, MemoryHandle handle, int kind,
                                  unsigned long long flags) {
  if (const Code code = enter("cuMemExportToShareableHandle")) return code;
  Memory& m = memory();
  const std::shared_lock lock(m.mutex);
  const auto found = m.handles.find(handle);
  if (!shareable || flags || found == m.handles.end() || !(found->second->handles & kind) ||
      (kind != kPosixHandle && kind != kFabricHandle))
    return refuse("cuMemExportToShareableHandle", kInvalidValue, "handle %llx as kind %d", handle,
                  kind);
  if (kind == kPosixHandle) {
    const int fd = fcntl(found->second->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return kOutOfMemory;
    std::memcpy(shareable, &fd, sizeof fd);
    return kSuccess;
  }
  struct stat file = {};
  fstat(found->second->fd, &file);
  Fabric fabric = {};
  std::memcpy(fabric.magic, kMagic, sizeof kMagic);
  fabric.process = getpid();
  fabric.fd = found->second->fd;
  fabric.inode = file.st_ino;
  std::memset(shareable, 0, 64);
  std::memcpy(shareable, &fabric, sizeof fabric);
  return kSuccess;
}

Code cuMemImportFromShareableHandle(MemoryHandle* handle, void* shareable, int kind) {
  if (const Code code = enter("cuMemImportFromShareableHandle")) return code;
  if (!handle || (kind != kPosixHandle && kind != kFabricHandle))
    return refuse("cuMemImportFromShareableHandle", kInvalidValue, "kind %d", kind);
  if (kind == kPosixHandle) {
    const int fd =
        fcntl(static_cast<int>(reinterpret_cast<intptr_t>(shareable)), F_DUPFD_CLOEXEC, 0);
    if (fd < 0) return refuse("cuMemImportFromShareableHandle", kInvalidValue, "not a descriptor");
    return import_descriptor(fd, handle);
  }
  Fabric fabric;
  std::memcpy(&fabric, shareable, sizeof fabric);
  if (std::memcmp(fabric.magic, kMagic, sizeof kMagic) != 0) return kInvalidValue;
  const std::string path =
      "/proc/" + std::to_string(fabric.process) + "/fd/" + std::to_string(fabric.fd);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat file = {};
  if (fd < 0) return kInvalidValue;
  if (fstat(fd, &file) == 0 && file.st_ino == fabric.inode) return import_descriptor(fd, handle);
  close(fd);
  return kInvalidValue;
}

}  // extern "C"
