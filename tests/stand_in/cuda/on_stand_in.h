// The frame of tests of the stand-in: two streams, memory of a device, and gates at which streams
// stand still. It calls the driver as the library does, through src/cuda/driver.h.
#pragma once
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <string>

#include "control.h"
#include "cuda/device.h"

namespace fsccl::cuda {
using stand_in::Control;
inline constexpr size_t kUnit = 2 << 20;
inline constexpr CUresult kIllegalAddress = 700, kInvalidHandle = 400, kInvalidContext = 201,
                          kNotPermitted = 800;

inline const Driver& d() {
  static std::string why;
  static const Driver* const driver = cuda::driver(&why);
  if (!driver) std::abort();
  return *driver;
}

inline uint32_t* words(CUdeviceptr address) { return reinterpret_cast<uint32_t*>(address); }
inline CUdeviceptr address_of(const void* pointer) {
  return reinterpret_cast<CUdeviceptr>(pointer);
}

inline CUmemAllocationProp properties(int device = 0,
                                      int handles = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
  CUmemAllocationProp made;
  made.requestedHandleTypes = handles;
  made.location.id = device;
  return made;
}

class StandIn : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(control.there());
    Result<const Device*> opened = Device::open(0);
    ASSERT_TRUE(opened.ok());
    device = opened.take();
    current.emplace(*device);
    for (CUstream* stream : {&a, &b})
      ASSERT_EQ(d().cuStreamCreateWithPriority(stream, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    ASSERT_EQ(d().cuMemAlloc(&memory, kUnit), CUDA_SUCCESS);
    ASSERT_EQ(d().cuMemHostRegister(gates, sizeof gates,
                                    CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
              CUDA_SUCCESS);
  }
  void TearDown() override {
    for (std::atomic<uint32_t>& gate : gates) gate = 1;
    EXPECT_EQ(d().cuStreamSynchronize(a), CUDA_SUCCESS);
    EXPECT_EQ(d().cuStreamSynchronize(b), CUDA_SUCCESS);
    EXPECT_EQ(d().cuMemHostUnregister(gates), CUDA_SUCCESS);
    EXPECT_EQ(d().cuMemFree(memory), CUDA_SUCCESS);
    for (CUstream stream : {a, b}) EXPECT_EQ(d().cuStreamDestroy(stream), CUDA_SUCCESS);
    EXPECT_EQ(control.leaks(), "");
    current.reset();
    control.broken_rules();
  }
  // Makes the stream wait until the gate is opened.
  void close(CUstream stream, int gate) {
    CUstreamBatchMemOpParams wait;
    wait.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.address = address_of(&gates[gate]);
    wait.value64 = 1;
    ASSERT_EQ(d().cuStreamBatchMemOp(stream, 1, &wait, 0), CUDA_SUCCESS);
  }
  bool idle(CUstream stream) { return d().cuStreamQuery(stream) == CUDA_SUCCESS; }

  const Control control;
  const Device* device = nullptr;
  std::optional<Current> current;
  CUstream a = nullptr, b = nullptr;
  CUdeviceptr memory = 0;
  std::atomic<uint32_t> gates[2] = {};
};

}  // namespace fsccl::cuda
