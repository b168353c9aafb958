#include "cuda/driver.h"

#include <optional>

#include "base/loaded_library.h"

namespace fsccl::cuda {
namespace {

constexpr int kOldest = 12000;

struct Loaded {
  std::optional<Driver> driver;
  std::string why;
};

// What is not found is null. The first missing one of those that must be there is what `missing`
// says.
void find_all(LoadedLibrary& library, Driver& d) {
  library.find(d.init, "cuInit");
  library.find(d.driver_version, "cuDriverGetVersion");
  library.find(d.error_name, "cuGetErrorName");
  library.find(d.error_string, "cuGetErrorString");
  library.find(d.device_count, "cuDeviceGetCount");
  library.find(d.device_get, "cuDeviceGet");
  library.find(d.device_name, "cuDeviceGetName");
  library.find(d.device_memory, "cuDeviceTotalMem_v2");
  library.find(d.device_attribute, "cuDeviceGetAttribute");
  library.find(d.device_uuid, "cuDeviceGetUuid_v2");
  library.find(d.can_access_peer, "cuDeviceCanAccessPeer");
  library.find(d.primary_retain, "cuDevicePrimaryCtxRetain");
  library.find(d.primary_release, "cuDevicePrimaryCtxRelease_v2");
  library.find(d.push_context, "cuCtxPushCurrent_v2");
  library.find(d.pop_context, "cuCtxPopCurrent_v2");
  library.find(d.synchronize, "cuCtxSynchronize");
  library.find(d.memory_info, "cuMemGetInfo_v2");
  library.find(d.granularity, "cuMemGetAllocationGranularity");
  library.find(d.reserve_addresses, "cuMemAddressReserve");
  library.find(d.free_addresses, "cuMemAddressFree");
  library.find(d.create_memory, "cuMemCreate");
  library.find(d.release_memory, "cuMemRelease");
  library.find(d.map_memory, "cuMemMap");
  library.find(d.unmap_memory, "cuMemUnmap");
  library.find(d.set_access, "cuMemSetAccess");
  library.find(d.export_memory, "cuMemExportToShareableHandle");
  library.find(d.import_memory, "cuMemImportFromShareableHandle");
  library.find(d.allocate, "cuMemAlloc_v2");
  library.find(d.free, "cuMemFree_v2");
  library.find(d.register_host, "cuMemHostRegister_v2");
  library.find(d.unregister_host, "cuMemHostUnregister");
  library.find(d.host_device_pointer, "cuMemHostGetDevicePointer_v2");
  library.find(d.pointer_attribute, "cuPointerGetAttribute");
  library.find(d.copy_async, "cuMemcpyAsync");
  library.find(d.fill_async, "cuMemsetD8Async");
  library.find(d.stream_create, "cuStreamCreateWithPriority");
  library.find(d.stream_destroy, "cuStreamDestroy_v2");
  library.find(d.stream_synchronize, "cuStreamSynchronize");
  library.find(d.stream_query, "cuStreamQuery");
  library.find(d.stream_wait_event, "cuStreamWaitEvent");
  library.find(d.stream_values, "cuStreamBatchMemOp_v2");
  library.find(d.stream_capturing, "cuStreamIsCapturing");
  library.find(d.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
  library.find(d.launch_host, "cuLaunchHostFunc");
  library.find(d.event_create, "cuEventCreate");
  library.find(d.event_destroy, "cuEventDestroy_v2");
  library.find(d.event_record, "cuEventRecord");
  library.find(d.event_query, "cuEventQuery");
  library.find(d.event_synchronize, "cuEventSynchronize");
  library.find(d.module_load, "cuModuleLoadData");
  library.find(d.module_unload, "cuModuleUnload");
  library.find(d.module_function, "cuModuleGetFunction");
  library.find(d.launch, "cuLaunchKernel");
}

Loaded load() {
  LoadedLibrary library("libcuda.so.1");
  if (!library.loaded())
    return {std::nullopt, fmt::format("NVIDIA's driver is not installed: {}", library.why_not())};
  // the driver opens descriptors in any of its calls, and so does NCCL, which needs the driver
  take_standard_numbers_for_good();
  Driver found{};
  find_all(library, found);
  if (library.missing())
    return {std::nullopt,
            fmt::format("libcuda.so.1 has no {}: install a driver for CUDA 12.0 or later",
                        library.missing())};
  library.find(found.copy_batch, "cuMemcpyBatchAsync");
  library.find(found.event_elapsed, "cuEventElapsedTime");
  library.find(found.copy_batch_v2, "cuMemcpyBatchAsync_v2");
  library.find(found.function_load, "cuFuncLoad");
  library.find(found.occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  Code code = found.driver_version(&found.version);
  if (code == kSuccess && found.version < kOldest)
    return {std::nullopt, fmt::format("the driver is for CUDA {}.{}: install one for 12.0 or later",
                                      found.version / 1000, found.version % 1000 / 10)};
  if (code == kSuccess) code = found.init(0);
  if (code != kSuccess) return {std::nullopt, failed(found, "cuInit", code).text()};
  return {found, ""};
}

}  // namespace

const Driver* driver(std::string* why) {
  static const Loaded loaded = load();
  if (!loaded.driver) *why = loaded.why;
  return loaded.driver ? &*loaded.driver : nullptr;
}

Status failed(const Driver& driver, const char* operation, Code code) {
  const char *name = nullptr, *text = nullptr;
  if (driver.error_name(code, &name) != kSuccess || !name) name = "an unknown error";
  if (driver.error_string(code, &text) != kSuccess || !text) text = "no text";
  const fsccl_status_t status = code == kOutOfMemory ? FSCCL_ERR_OUT_OF_MEMORY
                                : code == kNoDevice || code == kNotSupported
                                    ? FSCCL_ERR_NOT_AVAILABLE
                                    : FSCCL_ERR_SYSTEM;
  return fail(status, "{}: {} ({})", operation, name, text);
}

}  // namespace fsccl::cuda
