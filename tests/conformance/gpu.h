// Streams, copies and events for tests on a GPU. They call the driver that the library uses, which
// is found at run time: a real one, or the stand-in (tests/stand_in/cuda).
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace fsccl::testing {

struct CudaStream;
struct CudaEvent;

// A device, current in the thread that made this.
class Gpu {
 public:
  static bool there() { return library() && count() > 0; }
  static int count() {
    int count = 0;
    return function<int(unsigned)>("cuInit")(0) == 0 &&
                   function<int(int*)>("cuDeviceGetCount")(&count) == 0
               ? count
               : 0;
  }

  explicit Gpu(int ordinal) : ordinal_(ordinal) {
    int device = 0;
    void* context = nullptr;
    check(function<int(unsigned)>("cuInit")(0));
    check(function<int(int*, int)>("cuDeviceGet")(&device, ordinal));
    check(function<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device));
    check(function<int(void*)>("cuCtxPushCurrent_v2")(context));
    int relaxed = 2;  // a test may wait for its stream while another rank's is being captured
    check(function<int(int*)>("cuThreadExchangeStreamCaptureMode")(&relaxed));
    device_ = device;
  }
  ~Gpu() {
    for (CudaStream* stream : streams_)
      check(function<int(CudaStream*)>("cuStreamDestroy_v2")(stream));
    for (CudaEvent* event : events_) check(function<int(CudaEvent*)>("cuEventDestroy_v2")(event));
    for (void* memory : memory_)
      check(function<int(unsigned long long)>("cuMemFree_v2")(reinterpret_cast<uintptr_t>(memory)));
    void* context = nullptr;
    check(function<int(void**)>("cuCtxPopCurrent_v2")(&context));
    check(function<int(int)>("cuDevicePrimaryCtxRelease_v2")(device_));
  }
  Gpu(const Gpu&) = delete;

  int ordinal() const { return ordinal_; }
  CudaStream* stream() { return stream(1); }
  // Returns a new stream. The stream and the legacy default stream wait for each other.
  CudaStream* blocking_stream() { return stream(0); }
  void synchronize(CudaStream* stream) {
    check(function<int(CudaStream*)>("cuStreamSynchronize")(stream));
  }
  void settle(CudaStream* stream) {
    while (function<int(CudaStream*)>("cuStreamQuery")(stream) == kNotReady)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  bool idle(CudaStream* stream) { return function<int(CudaStream*)>("cuStreamQuery")(stream) == 0; }
  // Orders later work of `later` behind the work of `first` so far.
  void order(CudaStream* first, CudaStream* later) {
    events_.emplace_back();
    check(function<int(CudaEvent**, unsigned)>("cuEventCreate")(&events_.back(), 2));
    check(function<int(CudaEvent*, CudaStream*)>("cuEventRecord")(events_.back(), first));
    check(function<int(CudaStream*, CudaEvent*, unsigned)>("cuStreamWaitEvent")(later,
                                                                                events_.back(), 0));
  }
  // Allocates memory. The driver may wait for the device in here, and so for streams of other ranks
  // of this process, which may wait for this rank. So a test calls this before it puts work on a
  // stream and before a call that all ranks make.
  void* memory(size_t bytes) {
    unsigned long long address = 0;
    check(function<int(unsigned long long*, size_t)>("cuMemAlloc_v2")(&address, bytes ? bytes : 1));
    memory_.push_back(reinterpret_cast<void*>(address));
    return memory_.back();
  }
  // `to` and `from` may each lie on the host. For some host memory the driver would wait inside the
  // call until the stream is idle. That would block calls of other ranks, which are threads of this
  // process, and for which the stream may wait. So this function waits for the stream before.
  void copy(void* to, const void* from, size_t bytes, CudaStream* stream) {
    if (ordinary(to) || (ordinary(from) && bytes > kStaged)) settle(stream);
    if (bytes)
      check(function<int(unsigned long long, unsigned long long, size_t, CudaStream*)>(
          "cuMemcpyAsync")(reinterpret_cast<uintptr_t>(to), reinterpret_cast<uintptr_t>(from),
                           bytes, stream));
  }
  std::vector<char> read(const void* from, size_t bytes, CudaStream* stream) {
    std::vector<char> result(bytes);
    copy(result.data(), from, bytes, stream);
    synchronize(stream);
    return result;
  }
  void call(CudaStream* stream, void (*run)(void*), void* context) {
    check(function<int(CudaStream*, void (*)(void*), void*)>("cuLaunchHostFunc")(stream, run,
                                                                                 context));
  }

 private:
  CudaStream* stream(unsigned flags) {
    streams_.emplace_back();
    check(function<int(CudaStream**, unsigned, int)>("cuStreamCreateWithPriority")(&streams_.back(),
                                                                                   flags, 0));
    return streams_.back();
  }
  // The driver copies a source of up to this many bytes aside, and so does not wait for the stream.
  static constexpr size_t kStaged = 64 << 10;
  static constexpr int kNotReady = 600;

  // Returns true for memory of the host that the driver does not know.
  static bool ordinary(const void* pointer) {
    unsigned type = 0;
    return function<int(void*, int, unsigned long long)>("cuPointerGetAttribute")(
               &type, 2, reinterpret_cast<uintptr_t>(pointer)) != 0;
  }
  static void* library() {
    static void* const opened = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    return opened;
  }
  template <class Signature>
  static Signature* function(const char* name) {
    void* const found = dlsym(library(), name);
    EXPECT_NE(found, nullptr) << name;
    return reinterpret_cast<Signature*>(found);
  }
  static void check(int code) { EXPECT_EQ(code, 0) << "the driver refused a call of the test"; }

  const int ordinal_;
  int device_ = 0;
  std::vector<CudaStream*> streams_;
  std::vector<CudaEvent*> events_;
  std::vector<void*> memory_;
};

}  // namespace fsccl::testing
