// Memory and streams of a GPU for tests, through the driver: a real one, or the stand-in
// (tests/stand_in/cuda).
#pragma once
#include <cstddef>
#include <string>

#include "src/cuda/device.h"

namespace fsccl::testing {

// Returns the GPU of this rank among those that there are. If there is none, returns null and sets
// *why.
const cuda::Device* device_of_rank(int rank, std::string* why);

class DeviceStream {
 public:
  explicit DeviceStream(const cuda::Device& device);
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  void* get() const { return stream_; }
  void synchronize() const;

 private:
  const cuda::Device& device_;
  cuda::CUstream stream_ = nullptr;
};

class DeviceBlock {
 public:
  DeviceBlock(const cuda::Device& device, size_t bytes);
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  char* get() const { return reinterpret_cast<char*>(memory_); }
  // Copy the whole block from or to memory of the host, and return when that is done.
  void put(const void* from) const;
  void take(void* to) const;

 private:
  void copy(cuda::CUdeviceptr to, cuda::CUdeviceptr from) const;
  const cuda::Device& device_;
  const size_t bytes_;
  cuda::CUdeviceptr memory_ = 0;
};

}  // namespace fsccl::testing
