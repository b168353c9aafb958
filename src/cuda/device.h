// A GPU of this process: its features and its primary context, which the CUDA runtime and PyTorch
// also use. A Device is made once for each GPU and kept until the process ends. Every call on it
// needs its context, so the caller holds a Current during the call.
#pragma once
#include <string>
#include <vector>

#include "base/wait.h"
#include "cuda/driver.h"

namespace fsccl::cuda {

class Device {
 public:
  // Opens the device with this ordinal (0 ..). Returns FSCCL_ERR_NOT_AVAILABLE if there is no
  // driver or no such device, or if the device lacks a feature that the library needs. Any thread.
  static Result<const Device*> open(int ordinal);
  // Like open(), but makes no context: the result serves only to read properties.
  static Result<Device> look(int ordinal);

  const Driver& driver() const { return *driver_; }
  int ordinal() const { return ordinal_; }
  const std::string& name() const { return name_; }
  uint64_t memory_bytes() const { return memory_bytes_; }
  int multiprocessors() const { return multiprocessors_; }
  int copy_engines() const { return copy_engines_; }
  int capability() const { return capability_; }  // 10 * major + minor
  bool posix_handles() const { return posix_handles_; }
  bool fabric_handles() const { return fabric_handles_; }
  bool direct_rdma() const { return direct_rdma_; }  // NICs may reach exportable memory
  bool wide_values() const { return wide_values_; }  // stream operations on 64 bits
  bool batches() const { return driver_->cuMemcpyBatchAsync || driver_->cuMemcpyBatchAsync_v2; }
  const unsigned char* uuid() const { return uuid_; }  // 16 bytes

  // Returns true if work that the stream is given now becomes part of a graph. This is also so for
  // the legacy default stream while a blocking stream is captured. The caller holds a Current.
  Result<bool> capturing(CUstream stream) const;

  // Puts any number of operations on the stream, in their order. The caller holds a Current.
  Status put_values(std::vector<CUstreamBatchMemOpParams> operations, CUstream stream) const;

  Status check(const char* operation, CUresult code) const {
    return cuda::check(*driver_, operation, code);
  }

 private:
  friend class Current;
  Device() = default;

  const Driver* driver_ = nullptr;
  int ordinal_ = 0, device_ = 0;
  CUcontext context_ = nullptr;
  std::string name_;
  uint64_t memory_bytes_ = 0;
  int multiprocessors_ = 0, copy_engines_ = 0, capability_ = 0;
  bool posix_handles_ = false, fabric_handles_ = false, direct_rdma_ = false, wide_values_ = false;
  unsigned char uuid_[16] = {};
};

// Returns the number of devices. Without a driver it returns 0 and sets *why.
int device_count(std::string* why);
// Returns true if there may be devices, judged by the files of the kernel and by
// CUDA_VISIBLE_DEVICES (set, and empty). The driver is not asked, because a process that has
// started it cannot use it in a child of a fork.
bool devices_may_be_there();

// While a Current lives, its device's context is that of the calling thread, and the thread's
// capture mode is relaxed. The mode matters while a stream is captured anywhere in the process, as
// PyTorch does: CUDA then refuses queries of events and allocations of memory to every thread in
// another mode, and invalidates the capture. (Work on a captured stream goes into the graph in any
// mode.)
class Current {
 public:
  explicit Current(const Device& device)
      : driver_(device.driver()),
        pushed_(driver_.cuCtxPushCurrent(device.context_) == CUDA_SUCCESS) {
    if (driver_.cuThreadExchangeStreamCaptureMode(&mode_) != CUDA_SUCCESS)
      mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  ~Current() {
    CUcontext popped;
    if (mode_ != CU_STREAM_CAPTURE_MODE_RELAXED)
      (void)driver_.cuThreadExchangeStreamCaptureMode(&mode_);
    if (pushed_) (void)driver_.cuCtxPopCurrent(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
  int mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  // the thread's before
};

// A stream that is not synchronised with the legacy default stream. The destructor destroys it.
class OwnedStream {
 public:
  static Result<OwnedStream> create(const Device& device);
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  ~OwnedStream();
  CUstream get() const { return stream_; }
  Status finish(Deadline deadline, const BreakCheck& broken = {}) const;  // as OwnedEvent's

 private:
  OwnedStream(const Device& device, CUstream stream) : device_(&device), stream_(stream) {}
  const Device* device_;
  CUstream stream_;
};

// An event without timing. The destructor destroys it.
class OwnedEvent {
 public:
  static Result<OwnedEvent> create(const Device& device);
  OwnedEvent(OwnedEvent&& other) noexcept;
  OwnedEvent& operator=(OwnedEvent&& other) noexcept;
  ~OwnedEvent();
  CUevent get() const { return event_; }
  Status record(CUstream stream) const;  // the caller holds a Current
  Status make_wait(CUstream stream) const;
  bool complete() const;  // everything that it stands for is done, or it was never recorded
  // Waits on the host until the event is complete, the device has failed, `broken` gives an error,
  // which is returned, or the deadline passes (FSCCL_ERR_TIMEOUT). It polls, because a call that
  // waits inside the driver may block other threads there, and one of them may be a peer that the
  // event waits for. The caller holds a Current.
  Status finish(Deadline deadline, const BreakCheck& broken = {}) const;

 private:
  OwnedEvent(const Device& device, CUevent event) : device_(&device), event_(event) {}
  const Device* device_;
  CUevent event_;
};

}  // namespace fsccl::cuda
