// Sums over replicas that do not reach each other's memory: all-reduces of the sharded gradients in
// place, grouped into one call of the replicate_comm's collectives (collectives.h). Gradients in
// the unit's own block take one all-reduce. NCCL adds floats that are wider than 16 bits in an
// order of its own, unless FSCCL_REPRODUCIBLE says otherwise. The norm of the sums takes a launch
// of its own.
#pragma once
#include "comm/device/collectives.h"
#include "kernels/cuda/device_kernels.h"
#include "unit/device/replica_sum.h"

namespace fsccl {

class ReplicaCalls final : public ReplicaSum {
 public:
  static Result<std::unique_ptr<ReplicaSum>> create(const DeviceMover::Request& request);
  ~ReplicaCalls() override;

  Status place(const ShardMemory& grads) override;
  Status add(Call call) override;
  std::vector<cuda::CUstreamBatchMemOpParams> released() const override { return {}; }
  void finish() const override;

 private:
  explicit ReplicaCalls(const DeviceMover::Request& request)
      : spec_(request.spec), definition_(request.definition), pool_(request.pool) {}
  DeviceCollectives& on() const { return DeviceCollectives::of(*spec_.replicate_comm); }
  Status run(const Call& call);

  const UnitSpec& spec_;
  const UnitDefinition& definition_;
  DevicePool& pool_;
  const cuda::DeviceKernels* kernels_ = nullptr;
  std::vector<DeviceCall> calls_;
  // Makes the norm of each gradient by itself. Null if no norms are made.
  std::shared_ptr<const cuda::ReduceTable> norms_;
  std::optional<cuda::OwnedEvent> added_;  // behind the last call
};

}  // namespace fsccl
