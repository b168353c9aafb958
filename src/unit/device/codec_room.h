// The memory into which units on GPUs receive codes (coded_device_gather.h). It holds the codes of
// all ranks between the collective and the decoder. All units of a communicator share it, because
// their gathers run one after the other: a gather's stream waits for the last gather that used it.
#pragma once
#include <atomic>
#include <memory>
#include <optional>

#include "cuda/device.h"
#include "pool/device/device_pool.h"

namespace fsccl {

// Allocates in the pool, without a stream of the caller. The host waits until the bytes are free on
// all streams, so this is for calls that make a unit. With `zeros` the bytes are set to zero.
Result<cuda::CUdeviceptr> allocate_for_codec(DevicePool& pool, uint64_t bytes, bool zeros);

class CodecRoom {
 public:
  // Returns the room of the units of `comm` in `pool`. The first unit makes it; it ends with the
  // last.
  static std::shared_ptr<CodecRoom> of(DevicePool& pool, Communicator& comm);
  ~CodecRoom();
  CodecRoom(const CodecRoom&) = delete;
  CodecRoom& operator=(const CodecRoom&) = delete;

  // Makes the room at least so long. If it has to move, the host waits for the last gather.
  // FSCCL_ERR_OUT_OF_MEMORY: the pool has no room.
  Status reserve(uint64_t bytes);
  // These are called around the use of the room on a stream. The caller holds a Current.
  Status begin(cuda::CUstream stream) const { return last_->make_wait(stream); }
  Status end(cuda::CUstream stream) const { return last_->record(stream); }

  cuda::CUdeviceptr memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }  // any thread

 private:
  CodecRoom(DevicePool& pool, Communicator& comm) : pool_(pool), comm_(comm) {}
  bool give_back();

  DevicePool& pool_;
  Communicator& comm_;
  cuda::CUdeviceptr memory_ = 0;
  std::atomic<uint64_t> bytes_{0};
  std::optional<cuda::OwnedEvent> last_;  // behind the last use
};

}  // namespace fsccl
