// A GPU of this process: its primary context, which the CUDA runtime and PyTorch use, too, and what
// it can do. Made once each and kept until the process ends. Every call on it needs its context:
// hold a Current meanwhile.
#pragma once
#include <string>
#include <vector>

#include "base/wait.h"
#include "cuda/driver.h"

namespace fsccl::cuda {

class Device {
 public:
  // Of this ordinal (0 ..). FSCCL_ERR_NOT_AVAILABLE: no driver, no such device, or it lacks what
  // the library needs. Any thread.
  static Result<const Device*> open(int ordinal);
  // The same, to be read and no more: no context is made.
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
  bool batches() const { return driver_->copy_batch || driver_->copy_batch_v2; }
  const unsigned char* uuid() const { return uuid_; }  // 16 bytes

  // Whether what the stream is given now goes into a graph, or would be a part of one: of the
  // legacy default stream while a stream is captured that blocks. The caller holds a Current.
  Result<bool> capturing(Stream stream) const;

  // Any number of them, in their order. The caller holds a Current.
  Status put_values(std::vector<MemoryOperation> operations, Stream stream) const;

  Status check(const char* operation, Code code) const {
    return cuda::check(*driver_, operation, code);
  }

 private:
  friend class Current;
  Device() = default;

  const Driver* driver_ = nullptr;
  int ordinal_ = 0, device_ = 0;
  Context context_ = nullptr;
  std::string name_;
  uint64_t memory_bytes_ = 0;
  int multiprocessors_ = 0, copy_engines_ = 0, capability_ = 0;
  bool posix_handles_ = false, fabric_handles_ = false, direct_rdma_ = false, wide_values_ = false;
  unsigned char uuid_[16] = {};
};

// How many there are; 0, and *why, without a driver.
int device_count(std::string* why);
// Whether there may be some, by what the kernel shows and CUDA_VISIBLE_DEVICES hides (set, and
// empty). The driver is not asked: who has started it cannot use it in a child of a fork.
bool devices_may_be_there();

// The device's context is the calling thread's while this lives. And what the thread asks of events
// or takes of memory meanwhile is none of a capture's business: while one goes on anywhere in the
// process, as PyTorch's do, CUDA refuses that to every thread that does not say so, and the capture
// is lost. (What is put on a captured stream is in the graph, whatever the mode.)
class Current {
 public:
  explicit Current(const Device& device)
      : driver_(device.driver()), pushed_(driver_.push_context(device.context_) == kSuccess) {
    if (driver_.exchange_capture_mode(&mode_) != kSuccess) mode_ = kRelaxedCapture;
  }
  ~Current() {
    Context popped;
    if (mode_ != kRelaxedCapture) (void)driver_.exchange_capture_mode(&mode_);
    if (pushed_) (void)driver_.pop_context(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  const Driver& driver_;
  bool pushed_;
  int mode_ = kRelaxedCapture;  // the thread's before
};

// A stream that neither waits for the legacy default one nor is waited for by it, which destroys
// itself.
class OwnedStream {
 public:
  static Result<OwnedStream> create(const Device& device);
  OwnedStream(OwnedStream&& other) noexcept;
  OwnedStream& operator=(OwnedStream&& other) noexcept;
  ~OwnedStream();
  Stream get() const { return stream_; }
  Status finish(Deadline deadline, const BreakCheck& broken = {}) const;  // as OwnedEvent's

 private:
  OwnedStream(const Device& device, Stream stream) : device_(&device), stream_(stream) {}
  const Device* device_;
  Stream stream_;
};

// An event without a time, which destroys itself.
class OwnedEvent {
 public:
  static Result<OwnedEvent> create(const Device& device);
  OwnedEvent(OwnedEvent&& other) noexcept;
  OwnedEvent& operator=(OwnedEvent&& other) noexcept;
  ~OwnedEvent();
  Event get() const { return event_; }
  Status record(Stream stream) const;  // the caller holds a Current
  Status make_wait(Stream stream) const;
  bool complete() const;  // everything that it stands for is done, or it was never recorded
  // The host waits until the event is complete, the device has failed, `broken` gives an error,
  // which is returned, or the deadline passes (FSCCL_ERR_TIMEOUT). It asks again and again: a call
  // that waits in the driver may keep other threads out of it, and one of them may be a peer that
  // the event waits for. The caller holds a Current.
  Status finish(Deadline deadline, const BreakCheck& broken = {}) const;

 private:
  OwnedEvent(const Device& device, Event event) : device_(&device), event_(event) {}
  const Device* device_;
  Event event_;
};

}  // namespace fsccl::cuda
