// The time of what is put on a stream, between two events of the device, and memory to put it on.
#pragma once
#include <functional>
#include <memory>

#include "cuda/device.h"

namespace fsccl::perf {

// So many bytes of a device until this goes, filled with random bits that are finite numbers of
// about 1 in fp16, bf16 and fp32: of zeros, wires and caches that compress have less to do than of
// gradients.
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
    double us, copy_us;    // time of one launch
    double ratio_to_copy;  // ratio of the bandwidths
  };
  // Medians of rows of back-to-back ones, i counting up. Rows of `put` and `copy` take turns, and
  // the ratio is of neighbours: clocks and temperatures that change meanwhile change both.
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
