// The memory in which units on GPUs have codes between the codec and the collective, and decoded
// gradients until they are summed (coded_device_gather.h, coded_device_sum.h). All units of a
// communicator share one room for gathers and one for reductions, because these run one after the
// other: the stream of an operation waits for the last operation that used the room. The room also
// adds up what the codecs of its units report, for fsccl_metrics.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "base/function_ref.h"
#include "cuda/device.h"
#include "fsccl/insight.h"
#include "kernels/cuda/chunks.h"
#include "pool/device/device_pool.h"
#include "record/metrics.h"
#include "unit/unit_definition.h"

namespace fsccl {

// Codes of a rank begin at a multiple of so many bytes.
inline constexpr uint64_t kCodesAlignment = 256;
// Returns how kernels name the codec.
cuda::BlockCoding device_coding_of(const CodecSpec& spec);

// Allocates in the pool, without a stream of the caller. The host waits until the bytes are free on
// all streams, so this is for calls that make a unit. With `zeros` the bytes are set to zero.
Result<cuda::CUdeviceptr> allocate_for_codec(DevicePool& pool, uint64_t bytes, bool zeros);

// A gather or a reduction that tells what its codec has done.
class CodecReporter {
 public:
  virtual void report(fsccl_codec_report_t* report) const = 0;  // any thread

 protected:
  ~CodecReporter() = default;
};

class CodecRoom {
 public:
  enum class Use : uint8_t { gathers, reductions };
  // Returns the room of the units of `comm` in `pool`. The first unit makes it; it ends with the
  // last.
  static std::shared_ptr<CodecRoom> of(DevicePool& pool, Communicator& comm, Use use);
  ~CodecRoom();
  CodecRoom(const CodecRoom&) = delete;
  CodecRoom& operator=(const CodecRoom&) = delete;

  // From enter() to leave() the reporter's counts are part of fsccl_metrics. Counts of reporters
  // that have left stay part of the room's.
  void enter(const CodecReporter& reporter);
  void leave(const CodecReporter& reporter);

  // Makes the room at least so long. If it has to move, the host waits for the last operation.
  // FSCCL_ERR_OUT_OF_MEMORY: the pool has no room.
  Status reserve(uint64_t bytes);
  // Streams may use the room for ever, so later units get another one. The room is in no metric any
  // more, because it may outlive the communicator and the pool.
  void abandon();
  // Runs use(), which puts work on the stream that uses the room. The next use of the room waits
  // for that work, even if use() ends early. The caller holds a Current.
  Status run(cuda::CUstream stream, FunctionRef<Status()> use) const;

  cuda::CUdeviceptr memory() const { return memory_; }
  uint64_t bytes() const { return bytes_; }  // any thread

 private:
  CodecRoom(DevicePool& pool, Communicator& comm, Use use);
  bool give_back();
  void tell(MetricSamples& samples, std::string_view id);

  DevicePool& pool_;
  Communicator& comm_;
  const Use use_;
  cuda::CUdeviceptr memory_ = 0;
  std::atomic<uint64_t> bytes_{0};
  std::optional<cuda::OwnedEvent> last_;  // behind the last use
  std::mutex mutex_;                      // protects reporters_ and left_
  std::vector<const CodecReporter*> reporters_;
  fsccl_codec_report_t left_ = FSCCL_CODEC_REPORT_INIT;  // counts of reporters that have left
  std::unique_ptr<MetricsSource> metrics_;
};

}  // namespace fsccl
