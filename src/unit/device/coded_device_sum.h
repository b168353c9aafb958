// The reduction of a unit on GPUs with a block codec (codec/blocks.h), which loses something. A
// rank encodes its gradients for each other rank, and the ranks exchange the codes. Each rank
// decodes what it receives to fp32, casts its own gradients to fp32, and one launch sums these in
// the order of the ranks, scales and casts the sums, and makes the norm. Results have the bits that
// units on host memory have with the scope FSCCL_CODEC_EVERYWHERE.
//
// With feedback a rank keeps, in the pool, the rounding error of each element that it sent, and
// adds it to the element the next time.
#pragma once
#include <atomic>
#include <memory>
#include <vector>

#include "fsccl/insight.h"
#include "kernels/cuda/device_kernels.h"
#include "unit/device/codec_room.h"
#include "unit/device/collective_mover.h"
#include "unit/unit_definition.h"

namespace fsccl {

class CodedDeviceSum final : CodecReporter {
 public:
  // `pieces` are the gradients of all ranks, as in CollectiveMover::Request, in the reduce_dtype,
  // a type that the codec encodes. Codec blocks begin at the first element of each piece. The
  // communicator's DeviceCollectives are prepared.
  static Result<std::unique_ptr<CodedDeviceSum>> create(const UnitSpec& spec, DevicePool& pool,
                                                        std::vector<CollectiveMover::Piece> pieces);
  ~CodedDeviceSum();
  CodedDeviceSum(const CodedDeviceSum&) = delete;

  // These are those of CollectiveMover, but `slot` is the address of this rank's slot.
  Status place_sums(const std::vector<CollectiveMover::Sum>& sums);
  Status reduce(cuda::CUdeviceptr slot, const cuda::ReduceEpilogue& epilogue,
                cuda::CUdeviceptr norm, cuda::CUstream stream);
  // Fails the communicator if codes of a reduction that is over were damaged.
  void look() const;

  // Any thread may call these.
  void report(fsccl_codec_report_t* report) const override;
  uint64_t room_bytes() const { return room_->bytes(); }  // memory that units share
  void abandon_room() const { room_->abandon(); }

 private:
  CodedDeviceSum(const UnitSpec& spec, DevicePool& pool, std::vector<CollectiveMover::Piece> pieces)
      : spec_(spec),
        pool_(pool),
        room_(CodecRoom::of(pool, *spec.shard_comm, CodecRoom::Use::reductions)),
        pieces_(std::move(pieces)) {}
  Status make();
  Status make_tables();
  Status allocate();
  Status reduce_in(cuda::CUdeviceptr slot, const cuda::ReduceEpilogue& epilogue,
                   cuda::CUdeviceptr norm, cuda::CUstream stream);
  size_t ranks() const { return static_cast<size_t>(spec_.shard_comm->size()); }
  size_t self() const { return static_cast<size_t>(spec_.shard_comm->rank()); }

  const UnitSpec& spec_;
  DevicePool& pool_;
  const std::shared_ptr<CodecRoom> room_;
  const std::vector<CollectiveMover::Piece> pieces_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  // The room has the codes that the rank sends, behind them those that it receives, and then rows
  // of fp32, one for each rank, with the elements that this rank sums.
  std::vector<uint64_t> own_offsets_;  // in a row: the offset of each piece of this rank
  uint64_t sent_room_ = 0, row_bytes_ = 0;
  uint64_t part_bytes_ = 0;  // bytes of the codes that one other rank sends to this one
  uint64_t sent_elements_ = 0, sent_bytes_ = 0;
  cuda::CUdeviceptr feedback_ = 0;
  std::shared_ptr<const cuda::BlockTable> encoded_, decoded_;
  std::shared_ptr<const cuda::CastTable> own_;  // casts this rank's own gradients
  std::shared_ptr<const cuda::ReduceTable> sums_;
  DeviceCall call_;
  std::unique_ptr<cuda::HostMemory::Bytes> states_;  // a PartState by rank
  std::atomic<uint64_t> reductions_{0};
};

}  // namespace fsccl
