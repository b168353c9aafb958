// The frame of tests of units on GPUs: ranks with a pool, a stream and a host pool each, and a
// check that no rule of the driver was broken.
#pragma once
#include "../stand_in/cuda/control.h"
#include "device_unit_case.h"

namespace fsccl::testing {

class OnGpus : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string& why = why_not(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override {
    if (control_.there()) {
      EXPECT_EQ(control_.broken_rules(), "");
    }
  }
  const stand_in::Control control_;

 private:
  // Returns why units cannot be made, or an empty text if they can: without nvcc the library has no
  // kernels for them.
  static const std::string& why_not() {
    static const std::string why = [] {
      if (!Gpu::there()) return std::string("no GPU and no stand-in for CUDA's driver");
      std::string text;
      run_ranks(1, [&](Rank& self) {
        const DevicePoolScope pool(self.comm, 0);
        fsccl_unit_t unit = nullptr;
        const fsccl_status_t status = make_unit(simple_unit({{1}}), self.comm, pool.get(), &unit);
        if (status == FSCCL_ERR_NOT_AVAILABLE) {
          text = explain(status);
        } else {
          EXPECT_OK(status);
          EXPECT_OK(fsccl_unit_destroy(unit));
        }
      });
      return text;
    }();
    return why;
  }
};

struct OnGpu {
  explicit OnGpu(const Rank& self)
      : gpu(self.rank % Gpu::count()),
        pool(self.comm, gpu.ordinal()),
        host(self.comm),
        stream(gpu.stream()) {}
  Gpu gpu;
  DevicePoolScope pool;
  PoolScope host;
  CudaStream* stream;
};

}  // namespace fsccl::testing
