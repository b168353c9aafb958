#include "device_memory.h"

#include <gtest/gtest.h>

namespace fsccl::testing {
namespace {

void expect_done(const cuda::Device& device, const char* what, cuda::CUresult code) {
  const Status status = device.check(what, code);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.text());
}

}  // namespace

const cuda::Device* device_of_rank(int rank, std::string* why) {
  const int count = cuda::device_count(why);
  if (!count) return nullptr;
  Result<const cuda::Device*> opened = cuda::Device::open(rank % count);
  if (!opened.ok()) *why = opened.status().text();
  return opened.ok() ? opened.value() : nullptr;
}

DeviceStream::DeviceStream(const cuda::Device& device) : device_(device) {
  const cuda::Current current(device_);
  expect_done(
      device_, "cuStreamCreate",
      device_.driver().cuStreamCreateWithPriority(&stream_, cuda::CU_STREAM_NON_BLOCKING, 0));
}
DeviceStream::~DeviceStream() {
  const cuda::Current current(device_);
  expect_done(device_, "cuStreamDestroy", device_.driver().cuStreamDestroy(stream_));
}
void DeviceStream::synchronize() const {
  const cuda::Current current(device_);
  expect_done(device_, "cuStreamSynchronize", device_.driver().cuStreamSynchronize(stream_));
}

DeviceBlock::DeviceBlock(const cuda::Device& device, size_t bytes)
    : device_(device), bytes_(bytes) {
  const cuda::Current current(device_);
  expect_done(device_, "cuMemAlloc", device_.driver().cuMemAlloc(&memory_, bytes_));
}
DeviceBlock::~DeviceBlock() {
  const cuda::Current current(device_);
  expect_done(device_, "cuMemFree", device_.driver().cuMemFree(memory_));
}
void DeviceBlock::put(const void* from) const {
  copy(memory_, reinterpret_cast<cuda::CUdeviceptr>(from));
}
void DeviceBlock::take(void* to) const { copy(reinterpret_cast<cuda::CUdeviceptr>(to), memory_); }
void DeviceBlock::copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from) const {
  const cuda::Current current(device_);
  const DeviceStream stream(device_);
  const auto handle = static_cast<cuda::CUstream>(stream.get());
  expect_done(device_, "cuMemcpyAsync", device_.driver().cuMemcpyAsync(to, from, bytes_, handle));
  expect_done(device_, "cuStreamSynchronize", device_.driver().cuStreamSynchronize(handle));
}

}  // namespace fsccl::testing
