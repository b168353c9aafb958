#include "unit/device/codec_room.h"

#include "base/undo.h"
#include "comm/device/collectives.h"
#include "unit/codec_metrics.h"
#include "unit/shared_by_units.h"

namespace fsccl {

using Shared = SharedByUnits<CodecRoom, DevicePool>;

static_assert(cuda::kChunkMost == kBlocksMost && cuda::kChunkHeader == kBlocksHeaderBytes);
static_assert(static_cast<BlockKind>(cuda::kCodecInt8) == BlockKind::int8 &&
              static_cast<BlockKind>(cuda::kCodecFp8) == BlockKind::fp8 &&
              static_cast<BlockKind>(cuda::kCodecMxFp8) == BlockKind::mxfp8 &&
              static_cast<BlockKind>(cuda::kCodecInt4) == BlockKind::int4 &&
              static_cast<BlockKind>(cuda::kCodecBf16) == BlockKind::bf16);

cuda::BlockCoding device_coding_of(const CodecSpec& spec) {
  const BlockForm form = spec.form();
  return {static_cast<cuda::BlockCodec>(form.kind), form.block};
}

Result<cuda::CUdeviceptr> allocate_for_codec(DevicePool& pool, uint64_t bytes, bool zeros) {
  const cuda::OwnedStream& stream = pool.own_stream();
  FSCCL_ASSIGN(void* const memory, pool.alloc(bytes, stream.get(), kCodesAlignment));
  const auto made = reinterpret_cast<cuda::CUdeviceptr>(memory);
  const cuda::Device& device = pool.device();
  const cuda::Current current(device);
  Status ready = zeros ? device.check("cuMemsetD8Async",
                                      device.driver().cuMemsetD8Async(made, 0, bytes, stream.get()))
                       : success();
  if (ready.ok()) ready = stream.finish(Deadline::never());  // the stream has no other work
  if (ready.ok()) return made;
  (void)pool.free(memory, stream.get()).ok();
  return ready;
}

std::shared_ptr<CodecRoom> CodecRoom::of(DevicePool& pool, Communicator& comm, Use use) {
  const auto make = [&] { return std::shared_ptr<CodecRoom>(new CodecRoom(pool, comm, use)); };
  return Shared::of(pool, comm, make, static_cast<int>(use));
}

CodecRoom::CodecRoom(DevicePool& pool, Communicator& comm, Use use)
    : pool_(pool),
      comm_(comm),
      use_(use),
      metrics_(std::make_unique<MetricsSource>(
          [this](MetricSamples& samples, std::string_view id) { tell(samples, id); })) {}

void CodecRoom::enter(const CodecReporter& reporter) {
  const std::lock_guard lock(mutex_);
  reporters_.push_back(&reporter);
}

void CodecRoom::leave(const CodecReporter& reporter) {
  fsccl_codec_report_t last = FSCCL_CODEC_REPORT_INIT;
  const std::lock_guard lock(mutex_);
  if (!std::erase(reporters_, &reporter)) return;
  reporter.report(&last);
  add_counts(&left_, last);
}

void CodecRoom::tell(MetricSamples& samples, std::string_view id) {
  fsccl_codec_report_t sum = FSCCL_CODEC_REPORT_INIT;
  {
    const std::lock_guard lock(mutex_);
    sum = left_;
    for (const CodecReporter* reporter : reporters_) {
      fsccl_codec_report_t one = FSCCL_CODEC_REPORT_INIT;
      reporter->report(&one);
      add_counts(&sum, one);
    }
  }
  const std::string labels = codec_labels(comm_, pool_.name(), id);
  use_ == Use::gathers ? tell_gathers(samples, labels, sum) : tell_reductions(samples, labels, sum);
}

CodecRoom::~CodecRoom() {
  metrics_.reset();
  (void)give_back();
  Shared::forget_ended();
}

void CodecRoom::abandon() {
  metrics_.reset();
  Shared::forget(pool_, comm_, static_cast<int>(use_));
}

// Returns false if streams may still use the memory, which then stays allocated.
bool CodecRoom::give_back() {
  if (!memory_) return true;
  (void)DeviceCollectives::of(comm_).finish(*last_).ok();
  if (!last_->complete()) return false;
  return pool_.free(reinterpret_cast<void*>(memory_), pool_.own_stream().get()).ok();
}

Status CodecRoom::run(cuda::CUstream stream, FunctionRef<Status()> use) const {
  FSCCL_TRY(last_->make_wait(stream));
  Undo record([&] { (void)last_->record(stream).ok(); });
  FSCCL_TRY(use());
  record.keep();
  return last_->record(stream);
}

Status CodecRoom::reserve(uint64_t bytes) {
  if (!last_) {
    FSCCL_ASSIGN(last_, cuda::OwnedEvent::create(pool_.device()));
  }
  if (bytes <= bytes_) return success();
  FSCCL_ASSIGN(const cuda::CUdeviceptr made, allocate_for_codec(pool_, bytes, false));
  (void)give_back();
  memory_ = made;
  bytes_ = bytes;
  return success();
}

}  // namespace fsccl
