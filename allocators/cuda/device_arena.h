// The arena of a pool on a GPU: one range of addresses, and physical memory behind it that other
// processes can map. The memory comes in segments. A segment is one exportable handle, of the size
// that was asked for, rounded up to the device's granularity. A pool whose schedule was declared
// has one segment, and a pool that grows has several, end to end. A segment goes to other processes
// as a file descriptor (POSIX handle), or, between hosts of one NVLink domain, as a fabric handle.
// A process that imports it maps it at the same offset of an address range of its own.
#pragma once
#include <cstdint>
#include <vector>

#include "base/fd.h"
#include "cuda/device.h"

namespace fsccl {

class DeviceArena {
 public:
  // Reserves addresses for `bytes` (rounded up), without memory. The first address is a multiple of
  // `alignment`, a power of two.
  static Result<DeviceArena> reserve(const cuda::Device& device, uint64_t bytes,
                                     uint64_t alignment = 1);
  DeviceArena(DeviceArena&&) noexcept;
  DeviceArena& operator=(DeviceArena&&) noexcept;
  ~DeviceArena();  // requires that nothing on the device uses it any more

  const cuda::Device& device() const { return *device_; }
  cuda::CUdeviceptr base() const { return base_; }
  uint64_t address_bytes() const { return address_bytes_; }
  uint64_t bytes() const { return bytes_; }  // bytes from the base on that exist
  uint64_t granularity() const { return granularity_; }
  size_t segments() const { return segments_.size(); }

  // Adds a segment of new memory behind the last one. An error changes nothing.
  Status grow(uint64_t bytes);
  Result<Fd> export_segment(size_t index) const;
  // Exports a segment for processes of other hosts in the same NVLink domain. Returns
  // FSCCL_ERR_NOT_AVAILABLE if this host is in none.
  Result<cuda::CUmemFabricHandle> export_to_fabric(size_t index) const;
  uint64_t segment_bytes(size_t index) const { return segments_[index].bytes; }
  // Adds a segment of another process behind the last. `bytes` is the size that its owner named,
  // which the driver checks.
  Status adopt(Fd fd, uint64_t bytes);
  Status adopt(const cuda::CUmemFabricHandle& handle, uint64_t bytes);
  // Gives up the segments that lie wholly at or above `bytes`. Returns the number of bytes given
  // up.
  uint64_t shrink(uint64_t bytes);
  // Leaves the memory and its addresses mapped for the rest of the process, because the device may
  // still use them. The destructor frees nothing then.
  void leak();

 private:
  struct Segment {
    cuda::CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    int handles;  // the kinds of handle that it can be exported as; none if adopted
  };
  DeviceArena() = default;
  Status fits(uint64_t bytes) const;
  Status import(void* shareable, cuda::CUmemAllocationHandleType kind, uint64_t bytes);
  Status append(Segment segment);
  Status exported(void* shareable, size_t index, cuda::CUmemAllocationHandleType kind,
                  const char* others) const;
  void drop_last();
  void swap(DeviceArena& other) noexcept;

  const cuda::Device* device_ = nullptr;
  cuda::CUmemAllocationProp properties_;  // properties of memory to be made
  cuda::CUdeviceptr base_ = 0;
  uint64_t address_bytes_ = 0, bytes_ = 0, granularity_ = 0;
  std::vector<Segment> segments_;
};

}  // namespace fsccl
