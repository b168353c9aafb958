// What src/cuda/driver.h declares is what the toolkit's header declares: numbers, sizes, offsets,
// and the functions' arguments. All of it is known when this is compiled; the program has nothing
// left to do.
#define __CUDA_API_VERSION_INTERNAL  // every version of a function under its own name
#include <cuda.h>

#include <concepts>
#include <cstddef>
#include <type_traits>

#include "cuda/driver.h"
#include "perf/gpu/driver_pool.h"

namespace fsccl::cuda {
namespace {

static_assert(kSuccess == CUDA_SUCCESS && kInvalidValue == CUDA_ERROR_INVALID_VALUE &&
              kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY && kNoDevice == CUDA_ERROR_NO_DEVICE &&
              kNotReady == CUDA_ERROR_NOT_READY && kNotSupported == CUDA_ERROR_NOT_SUPPORTED);

constexpr bool is(Attribute ours, int theirs) { return static_cast<int>(ours) == theirs; }
static_assert(is(Attribute::multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
static_assert(is(Attribute::pci_bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID));
static_assert(is(Attribute::pci_device, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID));
static_assert(is(Attribute::pci_domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID));
static_assert(is(Attribute::copy_engines, CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT));
static_assert(is(Attribute::capability_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR));
static_assert(is(Attribute::capability_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR));
static_assert(is(Attribute::virtual_memory,
                 CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED));
static_assert(is(Attribute::posix_handles,
                 CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED));
static_assert(is(Attribute::direct_rdma,
                 CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED));
static_assert(is(Attribute::stream_values_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS));
static_assert(is(Attribute::fabric_handles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED));

static_assert(kNonBlockingStream == CU_STREAM_NON_BLOCKING &&
              kEventWithoutTime == CU_EVENT_DISABLE_TIMING);
static_assert(kHostPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              kHostMapped == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(kPointerMemoryType == CU_POINTER_ATTRIBUTE_MEMORY_TYPE &&
              kPointerOrdinal == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
static_assert(kMemoryOfHost == CU_MEMORYTYPE_HOST && kMemoryOfDevice == CU_MEMORYTYPE_DEVICE);
static_assert(static_cast<int>(kNoHandle) == CU_MEM_HANDLE_TYPE_NONE);
static_assert(static_cast<int>(kPosixHandle) == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
static_assert(static_cast<int>(kFabricHandle) == CU_MEM_HANDLE_TYPE_FABRIC);
static_assert(static_cast<int>(kWaitValue32) == CU_STREAM_MEM_OP_WAIT_VALUE_32);
static_assert(static_cast<int>(kWriteValue32) == CU_STREAM_MEM_OP_WRITE_VALUE_32);
static_assert(static_cast<int>(kWaitValue64) == CU_STREAM_MEM_OP_WAIT_VALUE_64);
static_assert(static_cast<int>(kWriteValue64) == CU_STREAM_MEM_OP_WRITE_VALUE_64);
static_assert(CU_STREAM_WAIT_VALUE_GEQ == 0 && CU_STREAM_WRITE_VALUE_DEFAULT == 0 &&
              CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(kRelaxedCapture == CU_STREAM_CAPTURE_MODE_RELAXED);
static_assert(CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0 && CU_MEM_ALLOC_GRANULARITY_RECOMMENDED == 1);

// What the members are when nobody says.
static_assert(Location().type == CU_MEM_LOCATION_TYPE_DEVICE &&
              AllocationProperties().type == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(AccessDescription().flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(CopyAttributes().source_order == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(CopyAttributes().source_hint.type == CU_MEM_LOCATION_TYPE_INVALID);
static_assert(CopyAttributes().flags == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);

#define SAME_PLACE(ours, our_member, theirs, their_member)                      \
  static_assert(offsetof(ours, our_member) == offsetof(theirs, their_member) && \
                sizeof(static_cast<ours*>(nullptr)->our_member) ==              \
                    sizeof(static_cast<theirs*>(nullptr)->their_member))
static_assert(sizeof(DevicePointer) == sizeof(CUdeviceptr) &&
              sizeof(MemoryHandle) == sizeof(CUmemGenericAllocationHandle));
static_assert(sizeof(Location) == sizeof(CUmemLocation));
SAME_PLACE(Location, type, CUmemLocation, type);
SAME_PLACE(Location, id, CUmemLocation, id);
static_assert(sizeof(AllocationProperties) == sizeof(CUmemAllocationProp));
SAME_PLACE(AllocationProperties, type, CUmemAllocationProp, type);
SAME_PLACE(AllocationProperties, handles, CUmemAllocationProp, requestedHandleTypes);
SAME_PLACE(AllocationProperties, location, CUmemAllocationProp, location);
SAME_PLACE(AllocationProperties, windows, CUmemAllocationProp, win32HandleMetaData);
SAME_PLACE(AllocationProperties, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_PLACE(AllocationProperties, gpu_direct_rdma, CUmemAllocationProp,
           allocFlags.gpuDirectRDMACapable);
SAME_PLACE(AllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
static_assert(sizeof(AccessDescription) == sizeof(CUmemAccessDesc));
SAME_PLACE(AccessDescription, location, CUmemAccessDesc, location);
SAME_PLACE(AccessDescription, flags, CUmemAccessDesc, flags);
static_assert(sizeof(FabricHandle) == sizeof(CUmemFabricHandle));
static_assert(sizeof(CopyAttributes) == sizeof(CUmemcpyAttributes));
SAME_PLACE(CopyAttributes, source_order, CUmemcpyAttributes, srcAccessOrder);
SAME_PLACE(CopyAttributes, source_hint, CUmemcpyAttributes, srcLocHint);
SAME_PLACE(CopyAttributes, destination_hint, CUmemcpyAttributes, dstLocHint);
SAME_PLACE(CopyAttributes, flags, CUmemcpyAttributes, flags);
static_assert(sizeof(MemoryOperation) == sizeof(CUstreamBatchMemOpParams));
SAME_PLACE(MemoryOperation, operation, CUstreamBatchMemOpParams, waitValue.operation);
SAME_PLACE(MemoryOperation, address, CUstreamBatchMemOpParams, waitValue.address);
SAME_PLACE(MemoryOperation, value, CUstreamBatchMemOpParams, waitValue.value64);
SAME_PLACE(MemoryOperation, flags, CUstreamBatchMemOpParams, waitValue.flags);
SAME_PLACE(MemoryOperation, alias, CUstreamBatchMemOpParams, waitValue.alias);
SAME_PLACE(MemoryOperation, address, CUstreamBatchMemOpParams, writeValue.address);
SAME_PLACE(MemoryOperation, value, CUstreamBatchMemOpParams, writeValue.value64);
SAME_PLACE(MemoryOperation, flags, CUstreamBatchMemOpParams, writeValue.flags);

// Of arguments: pointers stay pointers, to things of one size where both are known and ours are not
// bytes; all else has one size.
template <class Ours, class Theirs>
constexpr bool alike() {
  if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
    using A = std::remove_pointer_t<Ours>;
    using B = std::remove_pointer_t<Theirs>;
    constexpr bool bytes =
        std::same_as<std::remove_cv_t<A>, unsigned char> || std::is_void_v<A> || std::is_void_v<B>;
    if constexpr (std::is_function_v<A> || std::is_function_v<B>)
      return std::same_as<A, B>;
    else if constexpr (bytes || !requires { sizeof(A); } || !requires { sizeof(B); })
      return true;
    else
      return sizeof(A) == sizeof(B) && std::is_const_v<A> >= std::is_const_v<B>;
  } else {
    return std::is_pointer_v<Ours> == std::is_pointer_v<Theirs> && sizeof(Ours) == sizeof(Theirs);
  }
}
template <class... Ours, class... Theirs>
constexpr bool same(Code (*)(Ours...), CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return (alike<Ours, Theirs>() && ...);
}
#define SAME(field, function)                                                                      \
  static_assert(same(decltype(Driver::field)(nullptr), static_cast<decltype(&function)>(nullptr)), \
                #function)

static_assert(sizeof(Code) == sizeof(CUresult));
SAME(init, cuInit);
SAME(driver_version, cuDriverGetVersion);
SAME(error_name, cuGetErrorName);
SAME(error_string, cuGetErrorString);
SAME(device_count, cuDeviceGetCount);
SAME(device_get, cuDeviceGet);
SAME(device_name, cuDeviceGetName);
SAME(device_memory, cuDeviceTotalMem_v2);
SAME(device_attribute, cuDeviceGetAttribute);
SAME(device_uuid, cuDeviceGetUuid_v2);
SAME(can_access_peer, cuDeviceCanAccessPeer);
SAME(primary_retain, cuDevicePrimaryCtxRetain);
SAME(primary_release, cuDevicePrimaryCtxRelease_v2);
SAME(push_context, cuCtxPushCurrent_v2);
SAME(pop_context, cuCtxPopCurrent_v2);
SAME(synchronize, cuCtxSynchronize);
SAME(memory_info, cuMemGetInfo_v2);
SAME(granularity, cuMemGetAllocationGranularity);
SAME(reserve_addresses, cuMemAddressReserve);
SAME(free_addresses, cuMemAddressFree);
SAME(create_memory, cuMemCreate);
SAME(release_memory, cuMemRelease);
SAME(map_memory, cuMemMap);
SAME(unmap_memory, cuMemUnmap);
SAME(set_access, cuMemSetAccess);
SAME(export_memory, cuMemExportToShareableHandle);
SAME(import_memory, cuMemImportFromShareableHandle);
SAME(allocate, cuMemAlloc_v2);
SAME(free, cuMemFree_v2);
SAME(register_host, cuMemHostRegister_v2);
SAME(unregister_host, cuMemHostUnregister);
SAME(host_device_pointer, cuMemHostGetDevicePointer_v2);
SAME(pointer_attribute, cuPointerGetAttribute);
SAME(copy_async, cuMemcpyAsync);
#if CUDA_VERSION >= 12080
SAME(copy_batch, cuMemcpyBatchAsync);
#endif
#if CUDA_VERSION >= 13000
SAME(copy_batch_v2, cuMemcpyBatchAsync_v2);
#endif
SAME(fill_async, cuMemsetD8Async);
SAME(stream_create, cuStreamCreateWithPriority);
SAME(stream_destroy, cuStreamDestroy_v2);
SAME(stream_synchronize, cuStreamSynchronize);
SAME(stream_query, cuStreamQuery);
SAME(stream_wait_event, cuStreamWaitEvent);
SAME(stream_values, cuStreamBatchMemOp_v2);
SAME(stream_capturing, cuStreamIsCapturing);
SAME(exchange_capture_mode, cuThreadExchangeStreamCaptureMode);
SAME(launch_host, cuLaunchHostFunc);
SAME(event_create, cuEventCreate);
SAME(event_destroy, cuEventDestroy_v2);
SAME(event_record, cuEventRecord);
SAME(event_query, cuEventQuery);
SAME(event_synchronize, cuEventSynchronize);
SAME(module_load, cuModuleLoadData);
SAME(module_unload, cuModuleUnload);
SAME(module_function, cuModuleGetFunction);
#if CUDA_VERSION >= 12040
SAME(function_load, cuFuncLoad);
#endif
SAME(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor);
SAME(launch, cuLaunchKernel);

// Of the driver's own pool, which is measured beside ours.
static_assert(static_cast<int>(perf::kReleaseThreshold) == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
static_assert(static_cast<int>(perf::kMostReserved) == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
#define SAME_OF_POOL(field, function)                                                              \
  static_assert(                                                                                   \
      same(decltype(perf::DriverPool::field)(nullptr), static_cast<decltype(&function)>(nullptr)), \
      #function)
SAME_OF_POOL(default_pool, cuDeviceGetDefaultMemPool);
SAME_OF_POOL(set, cuMemPoolSetAttribute);
SAME_OF_POOL(get, cuMemPoolGetAttribute);
SAME_OF_POOL(trim, cuMemPoolTrimTo);
SAME_OF_POOL(allocate, cuMemAllocAsync);
SAME_OF_POOL(free, cuMemFreeAsync);

}  // namespace
}  // namespace fsccl::cuda

int main() { return 0; }
