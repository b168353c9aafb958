#include "memory.h"

#include <unistd.h>

namespace fsccl::stand_in {

Physical::~Physical() {
  close(fd);
  if (charged) charged->refund(bytes);
}

Memory& memory() {
  static Memory* const memory = new Memory;
  return *memory;
}

Kind Memory::kind_locked(DevicePointer begin, uint64_t bytes, const Device& device, bool write) {
  if (!bytes || begin + bytes < begin) return Kind::foreign;
  const auto allocation = covering(allocations, begin, bytes_of);
  if (allocation != allocations.end())
    return bytes <= allocation->first + allocation->second.bytes - begin ? Kind::device
                                                                         : Kind::foreign;
  if (covering(reservations, begin, bytes_of) != reservations.end()) {
    const uint64_t bit = uint64_t{1} << device.ordinal;
    for (uint64_t at = begin; at < begin + bytes;) {
      const auto mapping = covering(mappings, at, bytes_of);
      if (mapping == mappings.end() ||
          !((write ? mapping->second.writers : mapping->second.readers) & bit))
        return Kind::foreign;
      at = mapping->first + mapping->second.bytes;
    }
    return Kind::device;
  }
  if (overlaps(allocations, begin, bytes) || overlaps(reservations, begin, bytes))
    return Kind::foreign;
  const auto registration = covering(registrations, begin, bytes_of);
  if (registration == registrations.end()) return Kind::host;
  const Registration& found = registration->second;
  const bool portable = found.flags & 1;
  return bytes <= registration->first + found.bytes - begin && (portable || found.device == &device)
             ? Kind::registered
             : Kind::host;
}

Kind Memory::kind(DevicePointer begin, uint64_t bytes, const Device& device, bool write) {
  const std::shared_lock lock(mutex);
  return kind_locked(begin, bytes, device, write);
}

Code Memory::touch(const Device& device, DevicePointer destination, DevicePointer source,
                   uint64_t bytes, const std::function<void()>& work) {
  const std::shared_lock lock(mutex);
  const bool good_destination =
      !destination || kind_locked(destination, bytes, device, true) != Kind::foreign;
  if (!good_destination || (source && kind_locked(source, bytes, device, false) == Kind::foreign))
    return refuse("work in a stream", kIllegalAddress, "%llu bytes at %llx are not there any more",
                  static_cast<unsigned long long>(bytes), good_destination ? source : destination);
  work();
  return kSuccess;
}

bool Memory::where(DevicePointer address, unsigned* type, int* ordinal) {
  const std::shared_lock lock(mutex);
  if (const auto allocation = covering(allocations, address, bytes_of);
      allocation != allocations.end()) {
    *type = 2;
    *ordinal = allocation->second.device->ordinal;
    return true;
  }
  if (const auto mapping = covering(mappings, address, bytes_of); mapping != mappings.end()) {
    *type = 2;
    *ordinal = mapping->second.physical->ordinal;
    return true;
  }
  const auto registration = covering(registrations, address, bytes_of);
  if (registration == registrations.end()) return false;
  *type = 1;
  *ordinal = registration->second.device->ordinal;
  return true;
}

}  // namespace fsccl::stand_in
