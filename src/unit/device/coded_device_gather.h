// The gather of a unit on GPUs with a block codec (codec/blocks.h), which loses something. If its
// shards have changed, a rank encodes its pieces into memory of the unit, which keeps the codes, so
// that the gathers of forward and of backward send the same. One all-gather brings the codes of all
// ranks, and every rank decodes all of them into its slot, also its own. So all ranks have the same
// parameters, and the same bits as units on host memory have.
//
// The codes of a rank have a fixed size (kernels/cuda/chunks.h), because nothing may wait for the
// stream. If more elements have to go exactly than there is room for, the elements of that rank
// become NaN on all ranks, and look() fails the communicator as soon as the host can know of it.
// The encoder measures the blocks that a host would measure, and leaves what it finds in memory of
// the host.
#pragma once
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "fsccl/insight.h"
#include "kernels/cuda/device_kernels.h"
#include "unit/device/codec_room.h"
#include "unit/device/collective_mover.h"
#include "unit/unit_definition.h"

namespace fsccl {

class CodedDeviceGather final : CodecReporter {
 public:
  // `pieces` are those of all ranks, as in CollectiveMover::Request, in the wire_dtype, which the
  // codec takes. Codec blocks begin at the first element of each piece. The communicator's
  // DeviceCollectives are prepared.
  static Result<std::unique_ptr<CodedDeviceGather>> create(
      const UnitSpec& spec, DevicePool& pool, const std::vector<CollectiveMover::Piece>& pieces);
  ~CodedDeviceGather();
  CodedDeviceGather(const CodedDeviceGather&) = delete;

  // Gathers into the slot at `slot`. With `changed` this rank's pieces are in the slot, and are
  // encoded. Without it the codes of the last gather are sent.
  Status gather(cuda::CUdeviceptr slot, bool changed, cuda::CUstream stream);
  // Fails the communicator if a gather that is over could not be decoded.
  void look() const;

  // Any thread may call these.
  void report(fsccl_codec_report_t* report) const override;
  uint64_t room_bytes() const { return room_->bytes(); }  // memory that units share
  void abandon_room() const { room_->abandon(); }

 private:
  CodedDeviceGather(const UnitSpec& spec, DevicePool& pool)
      : spec_(spec),
        pool_(pool),
        room_(CodecRoom::of(pool, *spec.shard_comm, CodecRoom::Use::gathers)) {}
  Status make(const std::vector<CollectiveMover::Piece>& pieces);
  Status make_tables();
  Status gather_in(cuda::CUdeviceptr slot, bool changed, cuda::CUstream stream);
  Status encode(cuda::CUdeviceptr slot, cuda::CUstream stream);
  size_t ranks() const { return static_cast<size_t>(spec_.shard_comm->size()); }
  size_t self() const { return static_cast<size_t>(spec_.shard_comm->rank()); }
  cuda::BlockFigures* figures() const { return found_->as<cuda::BlockFigures>(); }
  uint32_t* states() const { return reinterpret_cast<uint32_t*>(figures() + 1); }

  const UnitSpec& spec_;
  DevicePool& pool_;
  const std::shared_ptr<CodecRoom> room_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  std::vector<cuda::CodedPart> parts_;  // by rank
  uint64_t part_bytes_ = 0;             // bytes that a rank sends: all send as many as the longest
  uint64_t own_bytes_ = 0;              // bytes of this rank's pieces, not encoded
  double bound_ = 0;
  cuda::BlockMeasure measure_;
  uint64_t encodings_ = 0;     // it chooses the measured blocks
  cuda::CUdeviceptr own_ = 0;  // memory with the bytes that this rank sends
  std::shared_ptr<const cuda::BlockTable> encoded_, decoded_;
  DeviceCall call_;
  // a BlockFigures of this rank, and a PartState by rank
  std::unique_ptr<cuda::HostMemory::Bytes> found_;
  std::atomic<uint64_t> gathers_{0};
};

}  // namespace fsccl
