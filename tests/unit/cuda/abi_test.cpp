// Compares src/cuda/cuda_api.h with the toolkit's cuda.h: numbers, sizes, offsets, and the
// arguments of the functions. The compiler checks all of it, so the program has nothing left to do.
#include "cuda/driver.h"
#include "perf/gpu/driver_pool.h"

// cuda.h defines these two as macros, so their values are kept before cuda.h is included.
constexpr unsigned kPortable = fsccl::cuda::CU_MEMHOSTREGISTER_PORTABLE;
constexpr unsigned kDeviceMap = fsccl::cuda::CU_MEMHOSTREGISTER_DEVICEMAP;

#define __CUDA_API_VERSION_INTERNAL  // every version of a function under its own name
#include <cuda.h>

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace fsccl::cuda {
namespace {

#define SAME_NUMBER(name) static_assert(static_cast<int>(name) == static_cast<int>(::name), #name)
SAME_NUMBER(CUDA_SUCCESS);
SAME_NUMBER(CUDA_ERROR_INVALID_VALUE);
SAME_NUMBER(CUDA_ERROR_OUT_OF_MEMORY);
SAME_NUMBER(CUDA_ERROR_NO_DEVICE);
SAME_NUMBER(CUDA_ERROR_NOT_READY);
SAME_NUMBER(CUDA_ERROR_NOT_SUPPORTED);
SAME_NUMBER(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME_NUMBER(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME_NUMBER(CU_MEM_HANDLE_TYPE_NONE);
SAME_NUMBER(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME_NUMBER(CU_MEM_HANDLE_TYPE_FABRIC);
SAME_NUMBER(CU_STREAM_MEM_OP_WAIT_VALUE_32);
SAME_NUMBER(CU_STREAM_MEM_OP_WRITE_VALUE_32);
SAME_NUMBER(CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME_NUMBER(CU_STREAM_MEM_OP_WRITE_VALUE_64);
SAME_NUMBER(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_NUMBER(CU_STREAM_NON_BLOCKING);
SAME_NUMBER(CU_EVENT_DISABLE_TIMING);
SAME_NUMBER(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_NUMBER(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_NUMBER(CU_MEMORYTYPE_HOST);
SAME_NUMBER(CU_MEMORYTYPE_DEVICE);
static_assert(kPortable == CU_MEMHOSTREGISTER_PORTABLE &&
              kDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);
static_assert(CU_STREAM_WAIT_VALUE_GEQ == 0 && CU_STREAM_WRITE_VALUE_DEFAULT == 0 &&
              CU_STREAM_CAPTURE_STATUS_NONE == 0);
static_assert(CU_MEM_ALLOC_GRANULARITY_MINIMUM == 0 && CU_MEM_ALLOC_GRANULARITY_RECOMMENDED == 1);

// The default values of members.
static_assert(CUmemLocation().type == CU_MEM_LOCATION_TYPE_DEVICE &&
              CUmemAllocationProp().type == CU_MEM_ALLOCATION_TYPE_PINNED);
static_assert(CUmemAccessDesc().flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
static_assert(CUmemcpyAttributes().srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
static_assert(CUmemcpyAttributes().srcLocHint.type == CU_MEM_LOCATION_TYPE_INVALID);
static_assert(CUmemcpyAttributes().flags == CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);

#define SAME_MEMBER(type, ours, theirs)                             \
  static_assert(offsetof(type, ours) == offsetof(::type, theirs) && \
                sizeof(static_cast<type*>(nullptr)->ours) ==        \
                    sizeof(static_cast<::type*>(nullptr)->theirs))
#define SAME_SIZE(type) static_assert(sizeof(type) == sizeof(::type), #type)
SAME_SIZE(CUresult);
SAME_SIZE(CUdeviceptr);
SAME_SIZE(CUmemGenericAllocationHandle);
SAME_SIZE(CUmemFabricHandle);
SAME_SIZE(CUmemLocation);
SAME_MEMBER(CUmemLocation, type, type);
SAME_MEMBER(CUmemLocation, id, id);
SAME_SIZE(CUmemAllocationProp);
SAME_MEMBER(CUmemAllocationProp, type, type);
SAME_MEMBER(CUmemAllocationProp, requestedHandleTypes, requestedHandleTypes);
SAME_MEMBER(CUmemAllocationProp, location, location);
SAME_MEMBER(CUmemAllocationProp, win32HandleMetaData, win32HandleMetaData);
SAME_MEMBER(CUmemAllocationProp, allocFlags.compressionType, allocFlags.compressionType);
SAME_MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable, allocFlags.gpuDirectRDMACapable);
SAME_MEMBER(CUmemAllocationProp, allocFlags.usage, allocFlags.usage);
SAME_SIZE(CUmemAccessDesc);
SAME_MEMBER(CUmemAccessDesc, location, location);
SAME_MEMBER(CUmemAccessDesc, flags, flags);
SAME_SIZE(CUmemcpyAttributes);
SAME_MEMBER(CUmemcpyAttributes, srcAccessOrder, srcAccessOrder);
SAME_MEMBER(CUmemcpyAttributes, srcLocHint, srcLocHint);
SAME_MEMBER(CUmemcpyAttributes, dstLocHint, dstLocHint);
SAME_MEMBER(CUmemcpyAttributes, flags, flags);
SAME_SIZE(CUstreamBatchMemOpParams);
SAME_MEMBER(CUstreamBatchMemOpParams, operation, waitValue.operation);
SAME_MEMBER(CUstreamBatchMemOpParams, address, waitValue.address);
SAME_MEMBER(CUstreamBatchMemOpParams, value64, waitValue.value64);
SAME_MEMBER(CUstreamBatchMemOpParams, flags, waitValue.flags);
SAME_MEMBER(CUstreamBatchMemOpParams, alias, waitValue.alias);
SAME_MEMBER(CUstreamBatchMemOpParams, address, writeValue.address);
SAME_MEMBER(CUstreamBatchMemOpParams, value64, writeValue.value64);
SAME_MEMBER(CUstreamBatchMemOpParams, flags, writeValue.flags);

// Compares two types of arguments. Pointers must both be pointers, and to things of one size where
// both sizes are known and ours are not bytes. All other types must have one size.
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
constexpr bool same(CUresult (*)(Ours...), ::CUresult (*)(Theirs...)) {
  if constexpr (sizeof...(Ours) != sizeof...(Theirs))
    return false;
  else
    return (alike<Ours, Theirs>() && ...);
}
// Every function of the table has the arguments of the toolkit's function. A toolkit before 12.8 or
// 13.0 does not declare the batched copies, and one before 12.4 has no cuFuncLoad.
#define SAME_FUNCTION(symbol)                                      \
  static_assert(same(static_cast<decltype(&api::symbol)>(nullptr), \
                     static_cast<decltype(&::symbol)>(nullptr)),   \
                #symbol)
#define FSCCL_CUDA_REQUIRED(name, symbol) SAME_FUNCTION(symbol);
#define FSCCL_CUDA_OPTIONAL(name, symbol)
#include "cuda/driver_functions.def"
SAME_FUNCTION(cuEventElapsedTime);
SAME_FUNCTION(cuOccupancyMaxActiveBlocksPerMultiprocessor);
#if CUDA_VERSION >= 12040
SAME_FUNCTION(cuFuncLoad);
#endif
#if CUDA_VERSION >= 12080
SAME_FUNCTION(cuMemcpyBatchAsync);
#endif
#if CUDA_VERSION >= 13000
SAME_FUNCTION(cuMemcpyBatchAsync_v2);
#endif

// The functions of the driver's own pool, which perf/gpu measures beside the library's pool.
static_assert(static_cast<int>(perf::kReleaseThreshold) == ::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD);
static_assert(static_cast<int>(perf::kMostReserved) == ::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH);
#define SAME_OF_POOL(field, function)                              \
  static_assert(same(decltype(perf::DriverPool::field)(nullptr),   \
                     static_cast<decltype(&::function)>(nullptr)), \
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
