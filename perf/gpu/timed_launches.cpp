#include "timed_launches.h"

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

namespace fsccl::perf {
namespace {

constexpr double kRowMicroseconds = 20'000;
constexpr size_t kMostInRow = 2000;
constexpr size_t kRandomBytes = 8 << 20;  // random bytes that are repeated

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

Status fill(const cuda::Device& device, cuda::CUdeviceptr begin, size_t bytes) {
  std::mt19937_64 random(316227);
  std::vector<uint64_t> values(kRandomBytes / sizeof(uint64_t));
  for (uint64_t& value : values) value = (random() & 0x83ff83ff83ff83ff) | 0x3c003c003c003c00;
  size_t filled = std::min(kRandomBytes, bytes);
  const auto copy = [&](cuda::CUdeviceptr to, cuda::CUdeviceptr from, size_t size) {
    return device.check("cuMemcpyAsync", device.driver().cuMemcpyAsync(to, from, size, nullptr));
  };
  FSCCL_TRY(copy(begin, reinterpret_cast<cuda::CUdeviceptr>(values.data()), filled));
  for (; filled < bytes; filled *= 2)
    FSCCL_TRY(copy(begin + filled, begin, std::min(filled, bytes - filled)));
  return device.check("cuStreamSynchronize", device.driver().cuStreamSynchronize(nullptr));
}

}  // namespace

Result<std::unique_ptr<Memory>> Memory::allocate(const cuda::Device& device, size_t bytes) {
  std::unique_ptr<Memory> made(new Memory(device));
  const cuda::Current current(device);
  FSCCL_TRY(device.check("cuMemAlloc", device.driver().cuMemAlloc(&made->begin_, bytes)));
  FSCCL_TRY(fill(device, made->begin_, bytes));
  return made;
}

Memory::~Memory() {
  const cuda::Current current(device_);
  if (begin_) (void)device_.driver().cuMemFree(begin_);
}

Result<std::unique_ptr<TimedLaunches>> TimedLaunches::make(const cuda::Device& device,
                                                           size_t rows) {
  std::unique_ptr<TimedLaunches> made(new TimedLaunches(device, rows));
  const cuda::Current current(device);
  FSCCL_TRY(device.check("cuStreamCreate", device.driver().cuStreamCreateWithPriority(
                                               &made->stream_, cuda::CU_STREAM_NON_BLOCKING, 0)));
  FSCCL_TRY(device.check("cuEventCreate", device.driver().cuEventCreate(&made->begin_, 0)));
  FSCCL_TRY(device.check("cuEventCreate", device.driver().cuEventCreate(&made->end_, 0)));
  return made;
}

TimedLaunches::~TimedLaunches() {
  const cuda::Current current(device_);
  if (begin_) (void)device_.driver().cuEventDestroy(begin_);
  if (end_) (void)device_.driver().cuEventDestroy(end_);
  if (stream_) (void)device_.driver().cuStreamDestroy(stream_);
}

// Returns the time of a row of launches. A driver that has no times of events is not NVIDIA's: then
// the host's clock is used, and the figure says nothing about a GPU.
Result<double> TimedLaunches::row(const Put& put, size_t count) {
  const cuda::Driver& driver = device_.driver();
  const cuda::Current current(device_);
  const auto start = std::chrono::steady_clock::now();
  FSCCL_TRY(device_.check("cuEventRecord", driver.cuEventRecord(begin_, stream_)));
  for (size_t i = 0; i < count; i++) FSCCL_TRY(put(turn_++));
  FSCCL_TRY(device_.check("cuEventRecord", driver.cuEventRecord(end_, stream_)));
  FSCCL_TRY(device_.check("cuEventSynchronize", driver.cuEventSynchronize(end_)));
  const std::chrono::duration<double, std::micro> by_clock =
      std::chrono::steady_clock::now() - start;
  float milliseconds = 0;
  if (!driver.cuEventElapsedTime) return by_clock.count() / static_cast<double>(count);
  FSCCL_TRY(
      device_.check("cuEventElapsedTime", driver.cuEventElapsedTime(&milliseconds, begin_, end_)));
  return static_cast<double>(milliseconds) * 1e3 / static_cast<double>(count);
}

// Returns how many launches make a row.
Result<size_t> TimedLaunches::count_of(const Put& put) {
  FSCCL_ASSIGN(double once, row(put, 1));  // some launches are slow the first time
  FSCCL_ASSIGN(once, row(put, 1));
  return std::clamp<size_t>(static_cast<size_t>(kRowMicroseconds / std::max(once, 1.0)), 1,
                            kMostInRow);
}

Result<TimedLaunches::Times> TimedLaunches::beside_copies(const Put& put, const Put& copy) {
  FSCCL_ASSIGN(const size_t count, count_of(put));
  FSCCL_ASSIGN(const size_t copies, count_of(copy));
  std::vector<double> times, copy_times, ratios;
  for (size_t i = 0; i < rows_; i++) {
    FSCCL_ASSIGN(const double copy_time, row(copy, copies));
    FSCCL_ASSIGN(const double time, row(put, count));
    times.push_back(time), copy_times.push_back(copy_time), ratios.push_back(copy_time / time);
  }
  return Times{median(times), median(copy_times), median(ratios)};
}

}  // namespace fsccl::perf
