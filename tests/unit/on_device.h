// Helpers of tests of device memory: streams that wait until a test lets them go on, copies between
// host and device, and a check by the stand-in that nothing is left and no rule was broken. They
// use the driver only.
#pragma once
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <string>
#include <vector>

#include "cuda/device.h"
#include "tests/stand_in/cuda/control.h"

namespace fsccl::testing {

// Skips a test that needs the stand-in if there is none; it stands at the beginning of the test.
#define NEEDS_STAND_IN() \
  if (!control.there())  \
  GTEST_SKIP() << "calls are counted, and failures injected, by the stand-in for CUDA's driver"

inline const cuda::Device& gpu(int ordinal = 0) {
  Result<const cuda::Device*> opened = cuda::Device::open(ordinal);
  if (!opened.ok()) throw std::runtime_error(opened.status().text());
  return *opened.value();
}

// Returns the last GPU, which is another than the first if there are several.
inline int last_gpu() {
  std::string why;
  return cuda::device_count(&why) - 1;
}

class TestStream {
 public:
  explicit TestStream(const cuda::Device& device = gpu()) : device_(device) {
    const cuda::Current current(device_);
    EXPECT_EQ(
        device_.driver().cuStreamCreateWithPriority(&stream_, cuda::CU_STREAM_NON_BLOCKING, 0),
        cuda::CUDA_SUCCESS);
  }
  ~TestStream() {
    finish();
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuStreamDestroy(stream_), cuda::CUDA_SUCCESS);
  }
  TestStream(const TestStream&) = delete;
  cuda::CUstream get() const { return stream_; }
  operator cuda::CUstream() const { return stream_; }
  void finish() const {
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuStreamSynchronize(stream_), cuda::CUDA_SUCCESS);
  }
  bool idle() const {
    const cuda::Current current(device_);
    return device_.driver().cuStreamQuery(stream_) == cuda::CUDA_SUCCESS;
  }
  void fill(cuda::CUdeviceptr at, uint8_t value, size_t bytes) const {
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuMemsetD8Async(at, value, bytes, stream_), cuda::CUDA_SUCCESS);
  }
  void copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from, size_t bytes) const {
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuMemcpyAsync(to, from, bytes, stream_), cuda::CUDA_SUCCESS);
  }

 private:
  const cuda::Device& device_;
  cuda::CUstream stream_ = nullptr;
};

// A page of host memory that devices can use. It has words for which streams wait, and room for
// bytes that streams copy from the device.
class HostPage {
 public:
  static constexpr size_t kBytes = 1 << 16;
  explicit HostPage(const cuda::Device& device = gpu()) : device_(device) {
    memory_ = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuMemHostRegister(
                  memory_, kBytes,
                  cuda::CU_MEMHOSTREGISTER_PORTABLE | cuda::CU_MEMHOSTREGISTER_DEVICEMAP),
              cuda::CUDA_SUCCESS);
    EXPECT_EQ(device_.driver().cuMemHostGetDevicePointer(&address_, memory_, 0),
              cuda::CUDA_SUCCESS);
  }
  ~HostPage() {
    const cuda::Current current(device_);
    EXPECT_EQ(device_.driver().cuMemHostUnregister(memory_), cuda::CUDA_SUCCESS);
    munmap(memory_, kBytes);
  }
  HostPage(const HostPage&) = delete;
  std::atomic<uint32_t>& word(size_t index) {
    return static_cast<std::atomic<uint32_t>*>(memory_)[index];
  }
  cuda::CUstreamBatchMemOpParams until(size_t index, uint32_t value) const {
    return {.operation = cuda::CU_STREAM_MEM_OP_WAIT_VALUE_32,
            .address = address_ + index * sizeof(uint32_t),
            .value64 = value};
  }
  // Makes the stream wait until the word has the value.
  void hold(cuda::CUstream stream, size_t index, uint32_t value = 1) const {
    const cuda::Current current(device_);
    cuda::CUstreamBatchMemOpParams wait = until(index, value);
    EXPECT_EQ(device_.driver().cuStreamBatchMemOp(stream, 1, &wait, 0), cuda::CUDA_SUCCESS);
  }
  // Room for bytes, in the second half.
  cuda::CUdeviceptr room() const { return address_ + kBytes / 2; }
  const uint8_t* seen() const { return static_cast<const uint8_t*>(memory_) + kBytes / 2; }

 private:
  const cuda::Device& device_;
  void* memory_ = nullptr;
  cuda::CUdeviceptr address_ = 0;
};

// Returns the first byte at the address, after everything that the stream was given.
inline int byte_at(cuda::CUdeviceptr at, const TestStream& stream, const HostPage& page) {
  stream.copy(page.room(), at, 1);
  stream.finish();
  return page.seen()[0];
}

// A test over a driver. At the end of a test the stand-in checks that everything was given back. A
// GPU's driver cannot tell.
class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    ASSERT_GT(cuda::device_count(&why), 0) << why;
    leaks_ = control.leaks();
  }
  void TearDown() override {
    EXPECT_EQ(control.leaks(), leaks_);
    EXPECT_EQ(control.broken_rules(), "");
  }
  uint64_t memory_calls() const {
    uint64_t sum = 0;
    for (const char* name :
         {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
          "cuMemAddressReserve", "cuMemImportFromShareableHandle", "cuMemExportToShareableHandle",
          "cuEventCreate"})
      sum += control.calls(name);
    return sum;
  }
  void expect_what_is_left() { leaks_ = control.leaks(); }  // the test leaves it on purpose
  const stand_in::Control control;

 private:
  std::string leaks_;
};

}  // namespace fsccl::testing
