// What tests of the stand-in have: two streams, memory of a device, and gates at which streams
// stand still. Called as the library calls it, through src/cuda/driver.h.
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
inline constexpr Code kIllegalAddress = 700, kInvalidHandle = 400, kInvalidContext = 201,
                      kNotPermitted = 800;

inline const Driver& d() {
  static std::string why;
  static const Driver* const driver = cuda::driver(&why);
  if (!driver) std::abort();
  return *driver;
}

inline uint32_t* words(DevicePointer address) { return reinterpret_cast<uint32_t*>(address); }
inline DevicePointer address_of(const void* pointer) {
  return reinterpret_cast<DevicePointer>(pointer);
}

inline AllocationProperties properties(int device = 0, int handles = kPosixHandle) {
  AllocationProperties made;
  made.handles = handles;
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
    for (Stream* stream : {&a, &b})
      ASSERT_EQ(d().stream_create(stream, kNonBlockingStream, 0), kSuccess);
    ASSERT_EQ(d().allocate(&memory, kUnit), kSuccess);
    ASSERT_EQ(d().register_host(gates, sizeof gates, kHostPortable | kHostMapped), kSuccess);
  }
  void TearDown() override {
    for (std::atomic<uint32_t>& gate : gates) gate = 1;
    EXPECT_EQ(d().stream_synchronize(a), kSuccess);
    EXPECT_EQ(d().stream_synchronize(b), kSuccess);
    EXPECT_EQ(d().unregister_host(gates), kSuccess);
    EXPECT_EQ(d().free(memory), kSuccess);
    for (Stream stream : {a, b}) EXPECT_EQ(d().stream_destroy(stream), kSuccess);
    EXPECT_EQ(control.leaks(), "");
    current.reset();
    control.broken_rules();
  }
  // The stream stands still until the gate is opened.
  void close(Stream stream, int gate) {
    MemoryOperation wait;
    wait.operation = kWaitValue32;
    wait.address = address_of(&gates[gate]);
    wait.value = 1;
    ASSERT_EQ(d().stream_values(stream, 1, &wait, 0), kSuccess);
  }
  bool idle(Stream stream) { return d().stream_query(stream) == kSuccess; }

  const Control control;
  const Device* device = nullptr;
  std::optional<Current> current;
  Stream a = nullptr, b = nullptr;
  DevicePointer memory = 0;
  std::atomic<uint32_t> gates[2] = {};
};

}  // namespace fsccl::cuda
