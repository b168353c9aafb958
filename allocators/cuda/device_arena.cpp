#include "allocators/cuda/device_arena.h"

#include <fcntl.h>

#include <utility>

#include "base/fork.h"
#include "base/round_up.h"

namespace fsccl {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 47;

// Describes memory of this device that other processes can map, by all means that the device has,
// and that NICs can reach.
cuda::CUmemAllocationProp properties_of(const cuda::Device& device) {
  cuda::CUmemAllocationProp properties;
  properties.location.id = device.ordinal();
  properties.requestedHandleTypes =
      (device.posix_handles() ? cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : 0) |
      (device.fabric_handles() ? cuda::CU_MEM_HANDLE_TYPE_FABRIC : 0);
  properties.allocFlags.gpuDirectRDMACapable = device.direct_rdma();
  return properties;
}

}  // namespace

Result<DeviceArena> DeviceArena::reserve(const cuda::Device& device, uint64_t bytes,
                                         uint64_t alignment) {
  if (bytes > kMostBytes || alignment > kMostBytes)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{} bytes aligned to {} are more than any GPU has addresses for", bytes, alignment);
  const cuda::Current current(device);
  DeviceArena arena;
  arena.properties_ = properties_of(device);
  size_t granularity = 0;
  FSCCL_TRY(device.check(
      "cuMemGetAllocationGranularity",
      device.driver().cuMemGetAllocationGranularity(&granularity, &arena.properties_, 0)));
  arena.granularity_ = granularity;
  const uint64_t space = round_up(bytes ? bytes : 1, granularity);
  const uint64_t asked = alignment > granularity ? alignment : 0;
  FSCCL_TRY(device.check("cuMemAddressReserve",
                         device.driver().cuMemAddressReserve(&arena.base_, space, asked, 0, 0)));
  arena.device_ = &device;  // from here on the destructor gives something back
  arena.address_bytes_ = space;
  return arena;
}

DeviceArena::DeviceArena(DeviceArena&& other) noexcept { swap(other); }

DeviceArena& DeviceArena::operator=(DeviceArena&& other) noexcept {
  DeviceArena taken(std::move(other));
  swap(taken);
  return *this;
}

void DeviceArena::swap(DeviceArena& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(properties_, other.properties_);
  std::swap(base_, other.base_);
  std::swap(address_bytes_, other.address_bytes_);
  std::swap(bytes_, other.bytes_);
  std::swap(granularity_, other.granularity_);
  std::swap(segments_, other.segments_);
}

DeviceArena::~DeviceArena() {
  if (!device_ || forked()) return;
  shrink(0);
  const cuda::Current current(*device_);
  (void)device_->driver().cuMemAddressFree(base_, address_bytes_);
}

void DeviceArena::leak() {
  segments_.clear();
  device_ = nullptr;
}

Status DeviceArena::fits(uint64_t bytes) const {
  if (bytes > address_bytes_ - bytes_)
    return fail(FSCCL_ERR_OUT_OF_MEMORY,
                "a segment of {} bytes behind {} exceeds the {} bytes of addresses of this arena",
                bytes, bytes_, address_bytes_);
  return success();
}

Status DeviceArena::grow(uint64_t bytes) {
  const uint64_t whole = bytes > kMostBytes ? bytes : round_up(bytes ? bytes : 1, granularity_);
  FSCCL_TRY(fits(whole));
  // Room for the segment is made first, so that append() cannot fail for want of host memory.
  segments_.reserve(segments_.size() + 1);
  const cuda::Current current(*device_);
  const cuda::Driver& driver = device_->driver();
  cuda::CUmemGenericAllocationHandle handle = 0;
  cuda::CUresult code = driver.cuMemCreate(&handle, whole, &properties_, 0);
  if (code != cuda::CUDA_SUCCESS && code != cuda::CUDA_ERROR_OUT_OF_MEMORY &&
      (properties_.requestedHandleTypes & cuda::CU_MEM_HANDLE_TYPE_FABRIC)) {
    // The GPU could make fabric handles, but this process may not, or the host is in no NVLink
    // domain.
    cuda::CUmemAllocationProp without = properties_;
    without.requestedHandleTypes &= ~cuda::CU_MEM_HANDLE_TYPE_FABRIC;
    code = driver.cuMemCreate(&handle, whole, &without, 0);
    if (code == cuda::CUDA_SUCCESS) properties_ = without;
  }
  if (code == cuda::CUDA_ERROR_OUT_OF_MEMORY) {
    size_t free_bytes = 0, total = 0;
    (void)driver.cuMemGetInfo(&free_bytes, &total);
    return fail(FSCCL_ERR_OUT_OF_MEMORY, "device {} has no {} bytes more: {} of {} are free",
                device_->ordinal(), whole, free_bytes, total);
  }
  FSCCL_TRY(device_->check("cuMemCreate", code));
  return append({handle, whole, properties_.requestedHandleTypes});
}

// Takes ownership of the handle, even if it fails.
Status DeviceArena::append(Segment segment) {
  const cuda::Driver& driver = device_->driver();
  const cuda::CUdeviceptr begin = base_ + bytes_;
  cuda::CUmemAccessDesc access;
  access.location.id = device_->ordinal();
  const char* what = "cuMemMap";
  cuda::CUresult code = driver.cuMemMap(begin, segment.bytes, 0, segment.handle, 0);
  if (code == cuda::CUDA_SUCCESS) {
    what = "cuMemSetAccess";
    code = driver.cuMemSetAccess(begin, segment.bytes, &access, 1);
    if (code != cuda::CUDA_SUCCESS) (void)driver.cuMemUnmap(begin, segment.bytes);
  }
  if (code != cuda::CUDA_SUCCESS) {
    (void)driver.cuMemRelease(segment.handle);
    return device_->check(what, code);
  }
  segments_.push_back(segment);
  bytes_ += segment.bytes;
  return success();
}

Status DeviceArena::exported(void* shareable, size_t index, cuda::CUmemAllocationHandleType kind,
                             const char* others) const {
  const Segment& segment = segments_[index];
  if (!(segment.handles & kind))
    return fail(FSCCL_ERR_NOT_AVAILABLE, "memory of device {} ({}) cannot be shared with {}",
                device_->ordinal(), device_->name(), others);
  const cuda::Current current(*device_);
  return device_->check(
      "cuMemExportToShareableHandle",
      device_->driver().cuMemExportToShareableHandle(shareable, segment.handle, kind, 0));
}

Result<Fd> DeviceArena::export_segment(size_t index) const {
  int raw = -1;
  const StandardNumbersTaken taken;
  FSCCL_TRY(exported(&raw, index, cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                     "other processes of this host"));
  Fd fd(raw);
  if (fcntl(fd.get(), F_SETFD, FD_CLOEXEC) != 0)
    return fail_errno(errno, "a descriptor of a GPU's memory");
  return fd;
}

Result<cuda::CUmemFabricHandle> DeviceArena::export_to_fabric(size_t index) const {
  cuda::CUmemFabricHandle handle;
  FSCCL_TRY(exported(&handle, index, cuda::CU_MEM_HANDLE_TYPE_FABRIC,
                     "other hosts: they are in no NVLink domain (IMEX)"));
  return handle;
}

Status DeviceArena::adopt(Fd fd, uint64_t bytes) {
  return import(reinterpret_cast<void*>(static_cast<intptr_t>(fd.get())),
                cuda::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, bytes);
}

Status DeviceArena::adopt(const cuda::CUmemFabricHandle& handle, uint64_t bytes) {
  cuda::CUmemFabricHandle copy = handle;
  return import(&copy, cuda::CU_MEM_HANDLE_TYPE_FABRIC, bytes);
}

Status DeviceArena::import(void* shareable, cuda::CUmemAllocationHandleType kind, uint64_t bytes) {
  if (!bytes || bytes % granularity_)
    return fail(FSCCL_ERR_PROTOCOL,
                "another rank's memory is said to have {} bytes, which is not a multiple of {}",
                bytes, granularity_);
  FSCCL_TRY(fits(bytes));
  segments_.reserve(segments_.size() + 1);
  const cuda::Current current(*device_);
  cuda::CUmemGenericAllocationHandle handle = 0;
  FSCCL_TRY(
      device_->check("another rank's memory: cuMemImportFromShareableHandle",
                     device_->driver().cuMemImportFromShareableHandle(&handle, shareable, kind)));
  return append({handle, bytes, cuda::CU_MEM_HANDLE_TYPE_NONE});
}

void DeviceArena::drop_last() {
  const Segment last = segments_.back();
  segments_.pop_back();
  bytes_ -= last.bytes;
  (void)device_->driver().cuMemUnmap(base_ + bytes_, last.bytes);
  (void)device_->driver().cuMemRelease(last.handle);
}

uint64_t DeviceArena::shrink(uint64_t bytes) {
  const uint64_t before = bytes_;
  const cuda::Current current(*device_);
  while (!segments_.empty() && bytes_ - segments_.back().bytes >= bytes) drop_last();
  return before - bytes_;
}

}  // namespace fsccl
