// The driver's own stream-ordered allocator (cudaMallocAsync), which is measured beside a pool. The
// library itself does not use it. The declarations follow those of cuda.h, as in cuda/driver.h;
// tests/unit/cuda/abi_test.cpp compares them.
#pragma once
#include "base/loaded_library.h"
#include "cuda/driver.h"

namespace fsccl::perf {

struct MemoryPoolHandle;
enum PoolAttribute : int { kReleaseThreshold = 4, kMostReserved = 6 };

struct DriverPool {
  cuda::CUresult (*default_pool)(MemoryPoolHandle** pool, int device);
  cuda::CUresult (*set)(MemoryPoolHandle* pool, int attribute, void* value);
  cuda::CUresult (*get)(MemoryPoolHandle* pool, int attribute, void* value);
  cuda::CUresult (*trim)(MemoryPoolHandle* pool, size_t bytes);
  cuda::CUresult (*allocate)(cuda::CUdeviceptr* pointer, size_t bytes, cuda::CUstream stream);
  cuda::CUresult (*free)(cuda::CUdeviceptr pointer, cuda::CUstream stream);

  // Loads the functions. Returns the name of the first that the driver lacks, or null.
  const char* find() {
    LoadedLibrary library("libcuda.so.1");
    library.find(default_pool, "cuDeviceGetDefaultMemPool");
    library.find(set, "cuMemPoolSetAttribute");
    library.find(get, "cuMemPoolGetAttribute");
    library.find(trim, "cuMemPoolTrimTo");
    library.find(allocate, "cuMemAllocAsync");
    library.find(free, "cuMemFreeAsync");
    return library.missing();
  }
};

}  // namespace fsccl::perf
