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
  cuda::Code (*default_pool)(MemoryPoolHandle** pool, int device);
  cuda::Code (*set)(MemoryPoolHandle* pool, int attribute, void* value);
  cuda::Code (*get)(MemoryPoolHandle* pool, int attribute, void* value);
  cuda::Code (*trim)(MemoryPoolHandle* pool, size_t bytes);
  cuda::Code (*allocate)(cuda::DevicePointer* pointer, size_t bytes, cuda::Stream stream);
  cuda::Code (*free)(cuda::DevicePointer pointer, cuda::Stream stream);

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
