// The stand-in's memory: pieces of physical memory (each a memfd), reserved addresses, mappings and
// their rights, allocations, and registered host memory. Device memory is memory of the process, so
// a kernel is ordinary code. Memory without access rights faults, and so does the page behind an
// allocation.
//
// Memory's functions may be called from any thread. While a copy runs, nothing can be unmapped.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <shared_mutex>

#include "abi.h"
#include "driver.h"

namespace fsccl::stand_in {

inline constexpr uint64_t kGranularity = 2u << 20;

struct Physical {
  int fd = -1;
  uint64_t bytes = 0;
  int handles = 0;            // the kinds of handles as which it can be exported
  Device* charged = nullptr;  // the device whose memory it is; null if it was imported
  int ordinal = -1;           // ordinal of its device; -1: a device that this process does not see
  ~Physical();
};

struct Mapping {
  uint64_t bytes = 0;
  std::shared_ptr<Physical> physical;
  uint64_t readers = 0, writers = 0;  // a bit for each device that may read or write
};

struct Allocation {
  uint64_t bytes = 0;
  Device* device = nullptr;
  uint64_t map_begin = 0, map_bytes = 0;  // includes the page that faults
};

struct Registration {
  uint64_t bytes = 0;
  unsigned flags = 0;
  Device* device = nullptr;
};

// The kind of a range of addresses. It is `foreign` if it is device memory that does not exist, or
// exists only in part, or that this device may not use.
enum class Kind { host, registered, device, foreign };

class Memory {
 public:
  // Returns the kind of a range to which `device` writes, or from which it reads.
  Kind kind(DevicePointer begin, uint64_t bytes, const Device& device, bool write);
  // Runs `work` while nothing can be unmapped. If a range is foreign, it breaks a rule and returns
  // kIllegalAddress instead.
  Code touch(const Device& device, DevicePointer destination, DevicePointer source, uint64_t bytes,
             const std::function<void()>& work);
  // Returns false if the address is neither device memory nor registered host memory.
  bool where(DevicePointer address, unsigned* type, int* ordinal);

  std::shared_mutex mutex;
  std::map<MemoryHandle, std::shared_ptr<Physical>> handles;
  std::map<uint64_t, uint64_t> reservations;  // from begin to bytes
  std::map<uint64_t, Mapping> mappings;
  std::map<uint64_t, Allocation> allocations;
  std::map<uint64_t, Registration> registrations;
  MemoryHandle next_handle = 0x1000;

 private:
  Kind kind_locked(DevicePointer begin, uint64_t bytes, const Device& device, bool write);
};

Memory& memory();

// Allocate and free memory without a handle, for cuMemAlloc() and for the driver's pool.
Code make_allocation(Device& device, DevicePointer* address, size_t bytes);
Code release_allocation(Device& device, DevicePointer address);

// Returns the entry of a map by addresses that covers `address`, or end() if none does.
template <class Map>
auto covering(Map& map, uint64_t address, uint64_t (*bytes_of)(const typename Map::mapped_type&)) {
  auto found = map.upper_bound(address);
  if (found == map.begin()) return map.end();
  --found;
  return address - found->first < bytes_of(found->second) ? found : map.end();
}

template <class Entry>
uint64_t bytes_of(const Entry& entry) {
  if constexpr (std::is_integral_v<Entry>)
    return entry;
  else
    return entry.bytes;
}

// Returns true if any entry lies in [begin, begin + bytes), even in part.
template <class Map>
bool overlaps(Map& map, uint64_t begin, uint64_t bytes) {
  const auto after = map.lower_bound(begin);
  if (after != map.end() && after->first - begin < bytes) return true;
  return after != map.begin() &&
         begin - std::prev(after)->first < bytes_of(std::prev(after)->second);
}

}  // namespace fsccl::stand_in
