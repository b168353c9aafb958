// Sums over replicas that map each other's slots. When the shard ranks have read a rank's gradient
// slot, the rank packs its sharded gradients there. Then each replica reads the slots of all
// replicas and sums them into its own gradients:
//
//   begin, wait until the shard ranks have read, cast (1 launch), ready, wait, reduce (1 launch),
//   done
//
// This needs no memory besides the slot. A rank reads from all replicas. With two replicas these
// are no more bytes than a reduce-scatter and an all-gather would read; with more replicas they are
// more.
#pragma once
#include "base/round_up.h"
#include "unit/device/replica_sum.h"
#include "unit/device/stream_program.h"

namespace fsccl {

class P2pReplicaSum final : public ReplicaSum {
 public:
  static Result<std::unique_ptr<ReplicaSum>> create(const DeviceMover::Request& request);
  // Returns the bytes in the slot for a gradient of so many elements.
  static uint64_t room(const UnitSpec& spec, uint64_t elements) {
    return round_up(elements * dtype_size(spec.grad_dtype), 64);
  }

  Status place(const ShardMemory& grads) override;
  Status add(Call call) override;
  std::vector<cuda::CUstreamBatchMemOpParams> released() const override {
    return track_->released();
  }
  void finish() const override { track_->finish(); }

 private:
  P2pReplicaSum(const DeviceMover::Request& request, std::vector<cuda::CUdeviceptr> slots)
      : spec_(request.spec),
        definition_(request.definition),
        pool_(request.pool),
        slots_(std::move(slots)) {}
  Status run(Call& call);

  const UnitSpec& spec_;
  const UnitDefinition& definition_;
  DevicePool& pool_;
  const std::vector<cuda::CUdeviceptr> slots_;  // by rank of the replicate_comm
  // The program outlives the track, which waits for its operations.
  std::unique_ptr<StreamProgram> program_;
  std::unique_ptr<Track> track_;
};

}  // namespace fsccl
