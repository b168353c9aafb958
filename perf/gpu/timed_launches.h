// The time of what is put on a stream, between two events of the device, and memory to put it on.
#pragma once
#include <functional>
#include <memory>

#include "cuda/device.h"

namespace fsccl::perf {

// So many bytes of a device, filled with zeros, until this goes.
class Memory {
 public:
  static Result<std::unique_ptr<Memory>> allocate(const cuda::Device& device, size_t bytes);
  ~Memory();
  cuda::DevicePointer begin() const { return begin_; }

 private:
  explicit Memory(const cuda::Device& device) : device_(device) {}
  const cuda::Device& device_;
  cuda::DevicePointer begin_ = 0;
};

class TimedLaunches {
 public:
  static Result<std::unique_ptr<TimedLaunches>> make(const cuda::Device& device, size_t rows);
  ~TimedLaunches();
  cuda::Stream stream() const { return stream_; }
  // Microseconds of one `put(i)`: the median of rows of back-to-back ones, i counting up.
  Result<double> microseconds(const std::function<Status(size_t i)>& put);

 private:
  TimedLaunches(const cuda::Device& device, size_t rows) : device_(device), rows_(rows) {}
  Result<double> row(const std::function<Status(size_t i)>& put, size_t count);
  const cuda::Device& device_;
  size_t rows_;
  cuda::Stream stream_ = nullptr;
  cuda::Event begin_ = nullptr, end_ = nullptr;
  size_t turn_ = 0;
};

}  // namespace fsccl::perf
