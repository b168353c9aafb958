// The second phase of HSDP's reduction on GPUs. The first phase has summed a rank's sharded
// gradients over the shard ranks. The second sums them in place over the ranks that hold the same
// shard, in the order of the stream, and makes the norm of the result. If this library sums them,
// it adds in rank order in fp32 and rounds once.
//
// There are two algorithms. All replicas make the same choice when the unit is made, as for a
// gather of as many bytes as the sharded gradients of all replicas have (select/unit_algorithm.h):
//   p2p_replica_sum.h   Replicas that reach each other's slots sum through the gradient slot, with
//                       one launch for all gradients.
//   replica_calls.h     Other replicas call collectives on the memory of the gradients, by NCCL,
//                       UCX or through host memory.
//
// The failure of the shard communicator is the replicas' failure, too, before streams go on
// (Engine::make_heir).
#pragma once
#include <memory>
#include <vector>

#include "unit/device/device_mover.h"

namespace fsccl {

class ReplicaSum {
 public:
  // Collective over the unit's replicate_comm, blocking. A unit with a replicate_comm has a
  // ReplicaSum.
  static Result<std::unique_ptr<ReplicaSum>> create(const DeviceMover::Request& request);
  virtual ~ReplicaSum() = default;  // waits until what was put on streams is over

  // Returns the bytes that the unit's gradient slot must have for the sum, the same on all ranks of
  // the unit.
  static uint64_t slot_bytes(const UnitSpec& spec, const Layout& layout);

  // Sets the places of the sharded gradients. Waits for the work that still uses the old places.
  virtual Status place(const ShardMemory& grads) = 0;

  struct Call {
    cuda::CUstream stream = nullptr;
    // The slot of the gradients. Their sums over the shard ranks were put on the stream before.
    uint64_t slot = 0;
    std::vector<cuda::CUstreamBatchMemOpParams> before;  // waits until no shard rank reads the slot
    // Memory for a DeviceNorm that the device reaches, or null.
    cuda::CUdeviceptr norm = 0;
    int64_t divisor = 1;  // divisor of the sum
    uint64_t hash = 0;    // hash of everything that ranks must agree on
  };
  virtual Status add(Call call) = 0;
  // Returns the waits that must be over, in addition to the stream, before the slot is written
  // again.
  virtual std::vector<cuda::CUstreamBatchMemOpParams> released() const = 0;
  // Waits on the host until all work that was put on streams is over, or has failed.
  virtual void finish() const = 0;
};

}  // namespace fsccl
