// HSDP's second phase on GPUs: a rank's sharded gradients, which the first has summed over the
// shard ranks, summed over the ranks that hold the same shard, where they lie; in the order of the
// stream. Added in rank order in fp32, rounded once, where this library sums them; with the norm of
// what comes out.
//
// How (create() chooses, all replicas alike):
//   p2p_replica_sum.h   replicas that reach each other's slots: through the gradient slot, with one
//                       launch for all gradients
//   replica_calls.h     others: collectives on the memory of the gradients, by NCCL, UCX or through
//                       host memory
#pragma once
#include <memory>
#include <vector>

#include "unit/device/device_mover.h"

namespace fsccl {

class ReplicaSum {
 public:
  // Collective over the unit's replicate_comm, blocking; a unit has one if that is there.
  static Result<std::unique_ptr<ReplicaSum>> create(const DeviceMover::Request& request);
  virtual ~ReplicaSum() = default;  // waits until what was put on streams is over

  // Returns the bytes that the unit's gradient slot must hold for it: the same on all ranks of the
  // unit.
  static uint64_t slot_bytes(const UnitSpec& spec, const Layout& layout);

  // Says where the sharded gradients are from now on. Waits for what still uses the old places.
  virtual Status place(const ShardMemory& grads) = 0;

  struct Call {
    cuda::CUstream stream = nullptr;
    // the slot of the gradients whose sums over the shard ranks the stream has been given
    uint64_t slot = 0;
    std::vector<cuda::CUstreamBatchMemOpParams> before;  // waits until shard ranks read it no more
    // null, or memory for a DeviceNorm that the device reaches
    cuda::CUdeviceptr norm = 0;
    int64_t divisor = 1;  // divisor of the sum
    uint64_t hash = 0;    // hash of everything that ranks must agree on
  };
  virtual Status add(Call call) = 0;
  // Returns the waits, beside the stream, that must be over before the slot is written again.
  virtual std::vector<cuda::CUstreamBatchMemOpParams> released() const = 0;
  // By the host: until all that was put on streams is over, or has failed.
  virtual void finish() const = 0;
};

}  // namespace fsccl
