// The functions of the CUDA driver that are used, from libcuda.so.1 when there is one: so one build
// serves machines with and without GPUs. Nothing else of CUDA is linked or loaded: the runtime's
// calls are made of these, and a cudaStream_t is a CUstream.
//
// Types and numbers are declared here as in cuda.h, whose soname keeps them;
// tests/unit/cuda/abi_test.cpp compares them with the toolkit's header where there is one. Names
// carry the version that is meant (_v2), as the library exports them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace fsccl::cuda {

using DevicePointer = unsigned long long;
using MemoryHandle = unsigned long long;
struct ContextHandle;
struct StreamHandle;
struct EventHandle;
struct ModuleHandle;
struct FunctionHandle;
using Context = ContextHandle*;
using Stream = StreamHandle*;  // null, or CU_STREAM_LEGACY: the legacy default stream
using Event = EventHandle*;
using Module = ModuleHandle*;
using Function = FunctionHandle*;

using Code = int;  // CUresult
inline constexpr Code kSuccess = 0, kInvalidValue = 1, kOutOfMemory = 2, kNoDevice = 100,
                      kNotReady = 600, kNotSupported = 801;
// of the legacy default stream: one that it would wait for is being captured
inline constexpr Code kCapturedBeside = 906;

enum class Attribute : int {
  multiprocessors = 16,
  pci_bus = 33,
  pci_device = 34,
  copy_engines = 40,
  pci_domain = 50,
  capability_major = 75,
  capability_minor = 76,
  virtual_memory = 102,
  posix_handles = 103,
  direct_rdma = 110,
  stream_values_64 = 122,
  fabric_handles = 128,
};

struct Location {
  int type = 1;  // a device
  int id = 0;
};
enum HandleKind : int { kNoHandle = 0, kPosixHandle = 1, kFabricHandle = 8 };
struct AllocationProperties {
  int type = 1;  // pinned
  int handles = kNoHandle;
  Location location;
  void* windows = nullptr;
  unsigned char compression = 0, gpu_direct_rdma = 0;
  unsigned short usage = 0;
  unsigned char reserved[4] = {};
};
struct AccessDescription {
  Location location;
  int flags = 3;  // read and write
};
struct FabricHandle {
  unsigned char data[64];
};

// Of a copy in a batch.
struct CopyAttributes {
  int source_order = 1;  // sources are read in the order of the stream
  Location source_hint{0, 0}, destination_hint{0, 0};
  unsigned flags = 1;  // on copy engines, beside kernels
};

enum ValueOperation : int {
  kWaitValue32 = 1,
  kWriteValue32 = 2,
  kWaitValue64 = 4,
  kWriteValue64 = 5
};
// Of cuStreamBatchMemOp. A wait ends when (int)(*address - value) >= 0.
struct MemoryOperation {
  int operation = 0;
  DevicePointer address = 0;
  uint64_t value = 0;
  unsigned flags = 0;
  DevicePointer alias = 0;
  uint64_t rest = 0;
};

inline constexpr unsigned kMostMemoryOperations = 255;  // in one call
inline constexpr int kRelaxedCapture = 2;               // CUstreamCaptureMode
inline bool is_legacy(Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }
inline constexpr unsigned kNonBlockingStream = 1, kEventWithoutTime = 2, kHostPortable = 1,
                          kHostMapped = 2;
inline constexpr int kPointerMemoryType = 2, kPointerOrdinal = 9;  // of pointer_attribute
inline constexpr unsigned kMemoryOfHost = 1, kMemoryOfDevice = 2;

// A field is null when the driver is too old to have it; those that every driver from 12.0 on has
// are never null.
struct Driver {
  Code (*init)(unsigned flags);
  Code (*driver_version)(int* version);
  Code (*error_name)(Code code, const char** name);
  Code (*error_string)(Code code, const char** text);
  Code (*device_count)(int* count);
  Code (*device_get)(int* device, int ordinal);
  Code (*device_name)(char* name, int capacity, int device);
  Code (*device_memory)(size_t* bytes, int device);
  Code (*device_attribute)(int* value, Attribute attribute, int device);
  Code (*device_uuid)(unsigned char* uuid, int device);
  Code (*can_access_peer)(int* can, int device, int peer);
  Code (*primary_retain)(Context* context, int device);
  Code (*primary_release)(int device);
  Code (*push_context)(Context context);
  Code (*pop_context)(Context* context);
  Code (*synchronize)();  // the current context

  Code (*memory_info)(size_t* free, size_t* total);
  Code (*granularity)(size_t* bytes, const AllocationProperties* properties, int recommended);
  Code (*reserve_addresses)(DevicePointer* pointer, size_t bytes, size_t alignment,
                            DevicePointer hint, unsigned long long flags);
  Code (*free_addresses)(DevicePointer pointer, size_t bytes);
  Code (*create_memory)(MemoryHandle* handle, size_t bytes, const AllocationProperties* properties,
                        unsigned long long flags);
  Code (*release_memory)(MemoryHandle handle);
  Code (*map_memory)(DevicePointer pointer, size_t bytes, size_t offset, MemoryHandle handle,
                     unsigned long long flags);
  Code (*unmap_memory)(DevicePointer pointer, size_t bytes);
  Code (*set_access)(DevicePointer pointer, size_t bytes, const AccessDescription* access,
                     size_t count);
  Code (*export_memory)(void* shareable, MemoryHandle handle, int kind, unsigned long long flags);
  Code (*import_memory)(MemoryHandle* handle, void* shareable, int kind);
  Code (*allocate)(DevicePointer* pointer, size_t bytes);
  Code (*free)(DevicePointer pointer);
  Code (*register_host)(void* pointer, size_t bytes, unsigned flags);
  Code (*unregister_host)(void* pointer);
  Code (*host_device_pointer)(DevicePointer* device, void* host, unsigned flags);
  Code (*pointer_attribute)(void* value, int attribute, DevicePointer pointer);

  Code (*copy_async)(DevicePointer destination, DevicePointer source, size_t bytes, Stream stream);
  // Two forms of one function: drivers from 12.8 on have the first, from 13.0 on the second.
  Code (*copy_batch)(DevicePointer* destinations, DevicePointer* sources, size_t* sizes,
                     size_t count, CopyAttributes* attributes, size_t* begins,
                     size_t attribute_count, size_t* failed, Stream stream);
  Code (*copy_batch_v2)(DevicePointer* destinations, DevicePointer* sources, size_t* sizes,
                        size_t count, CopyAttributes* attributes, size_t* begins,
                        size_t attribute_count, Stream stream);
  Code (*fill_async)(DevicePointer pointer, unsigned char value, size_t bytes, Stream stream);

  Code (*stream_create)(Stream* stream, unsigned flags, int priority);
  Code (*stream_destroy)(Stream stream);
  Code (*stream_synchronize)(Stream stream);
  Code (*stream_query)(Stream stream);
  Code (*stream_wait_event)(Stream stream, Event event, unsigned flags);
  Code (*stream_values)(Stream stream, unsigned count, MemoryOperation* operations, unsigned flags);
  Code (*stream_capturing)(Stream stream, int* status);  // 0: no
  Code (*exchange_capture_mode)(int* mode);              // of this thread
  Code (*launch_host)(Stream stream, void (*function)(void*), void* context);
  Code (*event_create)(Event* event, unsigned flags);
  Code (*event_destroy)(Event event);
  Code (*event_record)(Event event, Stream stream);
  Code (*event_query)(Event event);
  Code (*event_synchronize)(Event event);
  // may be null; of events with a time
  Code (*event_elapsed)(float* milliseconds, Event begin, Event end);

  Code (*module_load)(Module* module, const void* image);
  Code (*module_unload)(Module module);
  Code (*module_function)(Function* function, Module module, const char* name);
  Code (*function_load)(Function function);  // may be null: from 12.4 on
  // May be null. Blocks of so many threads that a multiprocessor has at once.
  Code (*occupancy)(int* blocks, Function function, int threads, size_t shared_bytes);
  Code (*launch)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                 unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                 Stream stream, void** arguments, void** extra);

  int version;  // 1000 * major + 10 * minor
};

// Initialised; null, and *why there is none. Stays loaded. A driver before 12.0 is none.
const Driver* driver(std::string* why);

// "operation: CUDA_ERROR_X (its text)" as FSCCL_ERR_OUT_OF_MEMORY, FSCCL_ERR_NOT_AVAILABLE or
// FSCCL_ERR_SYSTEM.
[[gnu::cold]] Status failed(const Driver& driver, const char* operation, Code code);
inline Status check(const Driver& driver, const char* operation, Code code) {
  return code == kSuccess ? success() : failed(driver, operation, code);
}

}  // namespace fsccl::cuda
