#include "cuda/pointer.h"

#include "base/loaded_library.h"
#include "cuda/driver.h"

namespace fsccl::cuda {
namespace {

using Ask = CUresult (*)(void* value, int attribute, CUdeviceptr pointer);

Ask find() {
  CUresult (*ask)(void*, int, CUdeviceptr) = nullptr;
  LoadedLibrary("libcuda.so.1").find(ask, "cuPointerGetAttribute");
  if (!ask) may_have_devices.store(false, std::memory_order_relaxed);
  return ask;
}

}  // namespace

bool ask_whether_on_device(const void* pointer, int* ordinal) {
  static const Ask ask = find();
  unsigned type = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(pointer);
  return ask && pointer && ask(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_SUCCESS &&
         type == CU_MEMORYTYPE_DEVICE &&
         ask(ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS;
}

}  // namespace fsccl::cuda
