#include "gpu/gpu.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace fsccl::testing {

using Address = unsigned long long;

// These types have the layout of those in cuda.h. A stream, an event and a context are addresses.
struct Operation {
  int operation;
  Address address;
  uint64_t value;
  unsigned flags;
  Address alias;
  uint64_t rest;
};

struct Gpu::Functions {
  int (*cuInit)(unsigned);
  int (*cuGetErrorName)(int, const char**);
  int (*cuDeviceGet)(int*, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxPushCurrent)(void*);
  int (*cuMemAlloc)(Address*, size_t);
  int (*cuMemHostRegister)(void*, size_t, unsigned);
  int (*cuMemHostUnregister)(void*);
  int (*cuMemHostGetDevicePointer)(Address*, void*, unsigned);
  int (*cuPointerGetAttribute)(void*, int, Address);
  int (*cuMemcpyAsync)(Address, Address, size_t, void*);
  int (*cuMemsetD8Async)(Address, unsigned char, size_t, void*);
  int (*cuStreamCreateWithPriority)(void**, unsigned, int);
  int (*cuStreamSynchronize)(void*);
  int (*cuStreamQuery)(void*);
  int (*cuStreamWaitEvent)(void*, void*, unsigned);
  int (*cuStreamBatchMemOp)(void*, unsigned, Operation*, unsigned);
  int (*cuEventCreate)(void**, unsigned);
  int (*cuEventDestroy)(void*);
  int (*cuEventRecord)(void*, void*);
};

namespace {

constexpr size_t kPage = 4096;
constexpr unsigned kNonBlocking = 1, kWithoutTime = 2, kMapped = 2;
constexpr int kWaitValue32 = 1, kMemoryType = 2;

Address address_of(const void* pointer) { return reinterpret_cast<Address>(pointer); }

template <typename Function>
bool find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

}  // namespace

bool Gpu::load(std::string* why) {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return *why = "no GPU: NVIDIA's driver is not installed", false;
  static Functions f;
  if (!find(library, f.cuInit, "cuInit") || !find(library, f.cuGetErrorName, "cuGetErrorName") ||
      !find(library, f.cuDeviceGet, "cuDeviceGet") ||
      !find(library, f.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain") ||
      !find(library, f.cuCtxPushCurrent, "cuCtxPushCurrent_v2") ||
      !find(library, f.cuMemAlloc, "cuMemAlloc_v2") ||
      !find(library, f.cuMemHostRegister, "cuMemHostRegister_v2") ||
      !find(library, f.cuMemHostUnregister, "cuMemHostUnregister") ||
      !find(library, f.cuMemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2") ||
      !find(library, f.cuPointerGetAttribute, "cuPointerGetAttribute") ||
      !find(library, f.cuMemcpyAsync, "cuMemcpyAsync") ||
      !find(library, f.cuMemsetD8Async, "cuMemsetD8Async") ||
      !find(library, f.cuStreamCreateWithPriority, "cuStreamCreateWithPriority") ||
      !find(library, f.cuStreamSynchronize, "cuStreamSynchronize") ||
      !find(library, f.cuStreamQuery, "cuStreamQuery") ||
      !find(library, f.cuStreamWaitEvent, "cuStreamWaitEvent") ||
      !find(library, f.cuStreamBatchMemOp, "cuStreamBatchMemOp_v2") ||
      !find(library, f.cuEventCreate, "cuEventCreate") ||
      !find(library, f.cuEventDestroy, "cuEventDestroy_v2") ||
      !find(library, f.cuEventRecord, "cuEventRecord"))
    return *why = std::string("no GPU: the driver is too old: ") + dlerror(), false;
  cuda_ = &f;
  int device = 0;
  void* context = nullptr;
  if (f.cuInit(0) != 0 || f.cuDeviceGet(&device, 0) != 0)
    return *why = "no GPU: the driver knows no device", false;
  if (f.cuDevicePrimaryCtxRetain(&context, device) != 0 || f.cuCtxPushCurrent(context) != 0)
    return *why = "no GPU: device 0 gives no context", false;
  return true;
}

const Gpu* Gpu::open(std::string* why) {
  static Gpu gpu;
  static std::string reason;
  static const bool there = gpu.load(&reason);
  *why = reason;
  return there ? &gpu : nullptr;
}

bool Gpu::good(const char* what, int code) const {
  if (code == 0) return true;
  const char* name = nullptr;
  if (cuda_->cuGetErrorName(code, &name) != 0 || !name) name = "unknown";
  std::printf("%s: %s\n", what, name);
  return false;
}

bool Gpu::copy(void* to, const void* from, size_t bytes, void* stream) const {
  return bytes == 0 ||
         good("copy", cuda_->cuMemcpyAsync(address_of(to), address_of(from), bytes, stream));
}

bool Gpu::fill(void* to, unsigned char value, size_t bytes, void* stream) const {
  return bytes == 0 || good("fill", cuda_->cuMemsetD8Async(address_of(to), value, bytes, stream));
}

bool Gpu::wait(void* stream) const { return good("wait", cuda_->cuStreamSynchronize(stream)); }

bool Gpu::idle(void* stream) const { return cuda_->cuStreamQuery(stream) == 0; }

bool Gpu::follow(void* stream, void* first) const {
  void* event = nullptr;
  return good("event", cuda_->cuEventCreate(&event, kWithoutTime)) &&
         good("record", cuda_->cuEventRecord(event, first)) &&
         good("wait for an event", cuda_->cuStreamWaitEvent(stream, event, 0)) &&
         good("event", cuda_->cuEventDestroy(event));
}

void* Gpu::make_stream() const {
  void* stream = nullptr;
  if (!good("stream", cuda_->cuStreamCreateWithPriority(&stream, kNonBlocking, 0))) std::abort();
  return stream;
}

void* Gpu::allocate(size_t bytes) const {
  Address address = 0;
  if (!good("allocate", cuda_->cuMemAlloc(&address, bytes))) std::abort();
  return reinterpret_cast<void*>(address);
}

bool Gpu::is_device(const void* pointer) const {
  unsigned type = 0;
  return cuda_->cuPointerGetAttribute(&type, kMemoryType, address_of(pointer)) == 0 && type == 2;
}

Gpu::Gate::Gate(const Gpu& gpu) : gpu_(gpu) {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || !gpu.good("pin", gpu.cuda_->cuMemHostRegister(page, kPage, kMapped)) ||
      !gpu.good("map", gpu.cuda_->cuMemHostGetDevicePointer(&address_, page, 0)))
    std::abort();
  flag_ = static_cast<std::atomic<uint32_t>*>(page);
}

Gpu::Gate::~Gate() {
  gpu_.cuda_->cuMemHostUnregister(flag_);
  munmap(flag_, kPage);
}

bool Gpu::Gate::shut(void* stream) const {
  flag_->store(0, std::memory_order_release);
  Operation wait{kWaitValue32, address_, 1, 0, 0, 0};
  // The driver's struct is padded to 48 bytes, and so is this one.
  static_assert(sizeof(Operation) == 48);
  return gpu_.good("gate", gpu_.cuda_->cuStreamBatchMemOp(stream, 1, &wait, 0));
}

void Gpu::Gate::open() const { flag_->store(1, std::memory_order_release); }

}  // namespace fsccl::testing
