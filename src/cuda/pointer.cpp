#include "cuda/pointer.h"

#include "base/loaded_library.h"
#include "cuda/driver.h"

namespace fsccl::cuda {
namespace {

using Ask = Code (*)(void* value, int attribute, DevicePointer pointer);

Ask find() {
  Code (*ask)(void*, int, DevicePointer) = nullptr;
  LoadedLibrary("libcuda.so.1").find(ask, "cuPointerGetAttribute");
  if (!ask) may_have_devices.store(false, std::memory_order_relaxed);
  return ask;
}

}  // namespace

bool ask_whether_on_device(const void* pointer, int* ordinal) {
  static const Ask ask = find();
  unsigned type = 0;
  const auto address = reinterpret_cast<DevicePointer>(pointer);
  return ask && pointer && ask(&type, kPointerMemoryType, address) == kSuccess &&
         type == kMemoryOfDevice && ask(ordinal, kPointerOrdinal, address) == kSuccess;
}

}  // namespace fsccl::cuda
