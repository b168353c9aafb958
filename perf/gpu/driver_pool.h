// The driver's own allocator in the order of streams (cudaMallocAsync), to be measured beside a
// pool. Declared after cuda.h, as cuda/driver.h is (tests/unit/cuda/abi_test.cpp compares); the
// library itself has no use of it.
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

  // The first function that the driver lacks; null: it has all.
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
