#include "gpu/gpu.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace fsccl::testing {

using Address = unsigned long long;

// As cuda.h has them; a stream, an event and a context are addresses.
struct Operation {
  int operation;
  Address address;
  uint64_t value;
  unsigned flags;
  Address alias;
  uint64_t rest;
};

struct Gpu::Functions {
  int (*init)(unsigned);
  int (*error_name)(int, const char**);
  int (*device_get)(int*, int);
  int (*retain)(void**, int);
  int (*push)(void*);
  int (*allocate)(Address*, size_t);
  int (*register_host)(void*, size_t, unsigned);
  int (*unregister_host)(void*);
  int (*host_pointer)(Address*, void*, unsigned);
  int (*pointer_attribute)(void*, int, Address);
  int (*copy)(Address, Address, size_t, void*);
  int (*fill)(Address, unsigned char, size_t, void*);
  int (*stream_create)(void**, unsigned, int);
  int (*stream_synchronize)(void*);
  int (*stream_query)(void*);
  int (*stream_wait_event)(void*, void*, unsigned);
  int (*stream_values)(void*, unsigned, Operation*, unsigned);
  int (*event_create)(void**, unsigned);
  int (*event_destroy)(void*);
  int (*event_record)(void*, void*);
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
  if (!find(library, f.init, "cuInit") || !find(library, f.error_name, "cuGetErrorName") ||
      !find(library, f.device_get, "cuDeviceGet") ||
      !find(library, f.retain, "cuDevicePrimaryCtxRetain") ||
      !find(library, f.push, "cuCtxPushCurrent_v2") ||
      !find(library, f.allocate, "cuMemAlloc_v2") ||
      !find(library, f.register_host, "cuMemHostRegister_v2") ||
      !find(library, f.unregister_host, "cuMemHostUnregister") ||
      !find(library, f.host_pointer, "cuMemHostGetDevicePointer_v2") ||
      !find(library, f.pointer_attribute, "cuPointerGetAttribute") ||
      !find(library, f.copy, "cuMemcpyAsync") || !find(library, f.fill, "cuMemsetD8Async") ||
      !find(library, f.stream_create, "cuStreamCreateWithPriority") ||
      !find(library, f.stream_synchronize, "cuStreamSynchronize") ||
      !find(library, f.stream_query, "cuStreamQuery") ||
      !find(library, f.stream_wait_event, "cuStreamWaitEvent") ||
      !find(library, f.stream_values, "cuStreamBatchMemOp_v2") ||
      !find(library, f.event_create, "cuEventCreate") ||
      !find(library, f.event_destroy, "cuEventDestroy_v2") ||
      !find(library, f.event_record, "cuEventRecord"))
    return *why = std::string("no GPU: the driver is too old: ") + dlerror(), false;
  cuda_ = &f;
  int device = 0;
  void* context = nullptr;
  if (f.init(0) != 0 || f.device_get(&device, 0) != 0)
    return *why = "no GPU: the driver knows no device", false;
  if (f.retain(&context, device) != 0 || f.push(context) != 0)
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
  if (cuda_->error_name(code, &name) != 0 || !name) name = "unknown";
  std::printf("%s: %s\n", what, name);
  return false;
}

bool Gpu::copy(void* to, const void* from, size_t bytes, void* stream) const {
  return bytes == 0 || good("copy", cuda_->copy(address_of(to), address_of(from), bytes, stream));
}

bool Gpu::fill(void* to, unsigned char value, size_t bytes, void* stream) const {
  return bytes == 0 || good("fill", cuda_->fill(address_of(to), value, bytes, stream));
}

bool Gpu::wait(void* stream) const { return good("wait", cuda_->stream_synchronize(stream)); }

bool Gpu::idle(void* stream) const { return cuda_->stream_query(stream) == 0; }

bool Gpu::follow(void* stream, void* first) const {
  void* event = nullptr;
  return good("event", cuda_->event_create(&event, kWithoutTime)) &&
         good("record", cuda_->event_record(event, first)) &&
         good("wait for an event", cuda_->stream_wait_event(stream, event, 0)) &&
         good("event", cuda_->event_destroy(event));
}

void* Gpu::make_stream() const {
  void* stream = nullptr;
  if (!good("stream", cuda_->stream_create(&stream, kNonBlocking, 0))) std::abort();
  return stream;
}

void* Gpu::allocate(size_t bytes) const {
  Address address = 0;
  if (!good("allocate", cuda_->allocate(&address, bytes))) std::abort();
  return reinterpret_cast<void*>(address);
}

bool Gpu::is_device(const void* pointer) const {
  unsigned type = 0;
  return cuda_->pointer_attribute(&type, kMemoryType, address_of(pointer)) == 0 && type == 2;
}

Gpu::Gate::Gate(const Gpu& gpu) : gpu_(gpu) {
  void* page = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || !gpu.good("pin", gpu.cuda_->register_host(page, kPage, kMapped)) ||
      !gpu.good("map", gpu.cuda_->host_pointer(&address_, page, 0)))
    std::abort();
  flag_ = static_cast<std::atomic<uint32_t>*>(page);
}

Gpu::Gate::~Gate() {
  gpu_.cuda_->unregister_host(flag_);
  munmap(flag_, kPage);
}

bool Gpu::Gate::shut(void* stream) const {
  flag_->store(0, std::memory_order_release);
  Operation wait{kWaitValue32, address_, 1, 0, 0, 0};
  // The driver's struct is padded to 48 bytes: the same as this one.
  static_assert(sizeof(Operation) == 48);
  return gpu_.good("gate", gpu_.cuda_->stream_values(stream, 1, &wait, 0));
}

void Gpu::Gate::open() const { flag_->store(1, std::memory_order_release); }

}  // namespace fsccl::testing
