// Measures the time of work on a stream between two events of the device, and gives it memory.
#pragma once
#include <functional>
#include <memory>

#include "cuda/device.h"

namespace fsccl::perf {

// Memory of a device, which is freed with this object. It is filled with random bits that are
// finite numbers of about 1 in fp16, bf16 and fp32, because zeros would be less work than gradients
// for wires and for caches that compress.
class Memory {
 public:
  static Result<std::unique_ptr<Memory>> allocate(const cuda::Device& device, size_t bytes);
  ~Memory();
  cuda::CUdeviceptr begin() const { return begin_; }

 private:
  explicit Memory(const cuda::Device& device) : device_(device) {}
  const cuda::Device& device_;
  cuda::CUdeviceptr begin_ = 0;
};

class TimedLaunches {
 public:
  static Result<std::unique_ptr<TimedLaunches>> make(const cuda::Device& device, size_t rows);
  ~TimedLaunches();
  cuda::CUstream stream() const { return stream_; }
  using Put = std::function<Status(size_t i)>;
  struct Times {
    double us, copy_us;    // times of one launch and of one copy
    double ratio_to_copy;  // ratio of the bandwidths
  };
  // Returns medians over rows of back-to-back launches; `i` counts the launches. Rows of `put` and
  // `copy` take turns, and the ratio compares neighbours: a clock or temperature that changes in
  // the meantime changes both.
  Result<Times> beside_copies(const Put& put, const Put& copy);

 private:
  TimedLaunches(const cuda::Device& device, size_t rows) : device_(device), rows_(rows) {}
  Result<double> row(const Put& put, size_t count);
  Result<size_t> count_of(const Put& put);
  const cuda::Device& device_;
  size_t rows_;
  cuda::CUstream stream_ = nullptr;
  cuda::CUevent begin_ = nullptr, end_ = nullptr;
  size_t turn_ = 0;
};

}  // namespace fsccl::perf
