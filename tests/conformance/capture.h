// Captures a stream while the object lives, in global mode as PyTorch does, by functions of the
// driver: a GPU's, or the stand-in's (tests/stand_in/cuda/graphs.cpp). The thread's own capture
// mode stays as it was.
#pragma once
#include <dlfcn.h>
#include <gtest/gtest.h>

namespace fsccl::testing {

class Capture {
 public:
  Capture(int ordinal, void* stream) : ordinal_(ordinal), stream_(stream) {
    in_context([&] { call("cuStreamBeginCapture_v2", stream_, 0); });
  }
  ~Capture() {
    end();
    in_context([&] { call("cuGraphDestroy", graph_); });
  }
  Capture(const Capture&) = delete;

  // Ends the capture and puts the captured work on the stream once. Other threads may still be
  // capturing in global mode. A thread in that mode that made a graph would end their captures, so
  // this thread changes its mode meanwhile.
  void replay() {
    end();
    int mode = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
    call("cuThreadExchangeStreamCaptureMode", &mode);
    in_context([&] {
      void* executable = nullptr;
      call("cuGraphInstantiateWithFlags", &executable, graph_, 0ULL);
      call("cuGraphLaunch", executable, stream_);
      call("cuGraphExecDestroy", executable);  // the driver destroys it when it has run
    });
    call("cuThreadExchangeStreamCaptureMode", &mode);
  }

 private:
  void end() {
    if (!graph_) in_context([&] { call("cuStreamEndCapture", stream_, &graph_); });
  }
  template <class... Arguments>
  static void call(const char* name, Arguments... arguments) {
    static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
    ASSERT_NE(function, nullptr) << name;
    EXPECT_EQ(function(arguments...), 0) << name;
  }
  template <class Body>
  void in_context(const Body& body) const {
    int device = 0;
    void* context = nullptr;
    call("cuDeviceGet", &device, ordinal_);
    call("cuDevicePrimaryCtxRetain", &context, device);
    call("cuCtxPushCurrent_v2", context);
    body();
    call("cuCtxPopCurrent_v2", &context);
    call("cuDevicePrimaryCtxRelease_v2", device);
  }

  const int ordinal_;
  void* const stream_;
  void* graph_ = nullptr;
};

}  // namespace fsccl::testing
