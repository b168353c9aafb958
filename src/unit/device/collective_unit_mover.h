// Moves a unit's bytes by collectives, for a unit whose ranks do not all reach each other's slots.
// One launch casts this rank's shards into its slot. Collectives bring the parts of the other ranks
// there, and bring each part of the gradients to the rank that owns it (collective_mover.h). With a
// codec these parts are encoded (coded_device_gather.h, coded_device_sum.h).
// Everything is in the order of the stream, and peers no longer use a slot when the operation is
// over on this rank. NCCL does not compare operations, so ranks that issue different ones end at
// the communicator's deadline.
#pragma once
#include <memory>
#include <optional>

#include "unit/device/coded_device_gather.h"
#include "unit/device/coded_device_sum.h"
#include "unit/device/collective_mover.h"
#include "unit/device/device_mover.h"

namespace fsccl {

class CollectiveUnitMover final : public DeviceMover {
 public:
  static Result<std::unique_ptr<DeviceMover>> create(const Request& request);
  ~CollectiveUnitMover() override;

  Status place_shards(const std::vector<std::byte*>& shards) override;
  Status place_sharded_grads(const std::vector<std::byte*>& grads) override;
  Status begin(Track::Kind kind, cuda::CUstream stream) override;
  Status took(Track::Kind kind, cuda::CUstream stream, OpCode what) override;
  Status gather(const Gather& gather) override;
  Status reduce(const Reduce& reduce) override;
  std::vector<cuda::CUstreamBatchMemOpParams> released(Track::Kind) const override { return {}; }
  void finish(Track::Kind kind) const override { (void)finished(kind).ok(); }
  void look() const override {
    if (coded_gather_) coded_gather_->look();
    if (coded_sum_) coded_sum_->look();
  }
  const CodedDeviceGather* coded_gather() const override { return coded_gather_.get(); }
  const CodedDeviceSum* coded_sum() const override { return coded_sum_.get(); }

 private:
  explicit CollectiveUnitMover(const Request& request)
      : spec_(request.spec), definition_(request.definition), pool_(request.pool) {}
  static Result<std::unique_ptr<CollectiveUnitMover>> make(const Request& request);
  std::vector<CollectiveMover::Piece> parameter_pieces() const;
  std::vector<CollectiveMover::Piece> gradient_pieces() const;
  bool reduced(size_t param) const {
    return !spec_.params[param].frozen && !definition_.layout->tied(param);
  }
  const cuda::OwnedEvent& last(Track::Kind kind) const {
    return kind == Track::Kind::parameters ? *gathered_ : *reduced_;
  }
  Status finished(Track::Kind kind) const;
  Status run(Track::Kind kind, cuda::CUstream stream, FunctionRef<Status()> operation) const;

  const UnitSpec& spec_;
  const UnitDefinition& definition_;
  DevicePool& pool_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  std::unique_ptr<CollectiveMover> by_;
  // These gather and reduce instead of by_ if the unit uses a codec for it.
  std::unique_ptr<CodedDeviceGather> coded_gather_;
  std::unique_ptr<CodedDeviceSum> coded_sum_;
  // Casts this rank's shards into the slot. Null if there are none.
  std::shared_ptr<const cuda::CastTable> casts_;
  std::optional<cuda::OwnedEvent> gathered_, reduced_;  // behind the last operation of each kind
};

}  // namespace fsccl
