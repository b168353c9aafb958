// The interface that moves a unit's bytes between GPUs. The unit manages states, slots and storage
// and makes these calls in the order of its program, the same on all ranks. The way from slot to
// slot is chosen when the unit is made (select/unit_algorithm.h).
#pragma once
#include <memory>
#include <vector>

#include "unit/device/stream_program.h"
#include "unit/device/track.h"
#include "unit/unit_definition.h"

namespace fsccl {

class DevicePool;

class DeviceMover {
 public:
  // The parts of a mover; all of them outlive it.
  struct Request {
    const UnitSpec& spec;
    const UnitDefinition& definition;
    DevicePool& pool;
  };
  // Makes the mover that is configured. Collective over the unit's shard_comm, blocking: all ranks
  // get one of the same kind, or all an error, which is FSCCL_ERR_NOT_AVAILABLE where a rank
  // cannot, with the reason.
  static Result<std::unique_ptr<DeviceMover>> create(const Request& request);
  virtual ~DeviceMover() = default;  // waits until what was put on streams is over

  // Says where this rank's shards, and reduced gradients, are from now on. Waits for what still
  // uses the old places.
  virtual Status place_shards(const std::vector<std::byte*>& shards) = 0;
  virtual Status place_sharded_grads(const std::vector<std::byte*>& grads) = 0;

  // Before a slot of this kind is taken on `stream`, and before gather() and reduce() where none
  // is: what the stream is given from now on follows the unit's last operation of the kind.
  virtual Status begin(Track::Kind kind, cuda::CUstream stream) = 0;
  // Called after begin() instead of an operation: a slot was taken (none), or another part did
  // `what` with the shards. The next operation of the kind follows it.
  virtual Status took(Track::Kind kind, cuda::CUstream stream, OpCode what = OpCode::none) = 0;

  struct Gather {
    cuda::CUstream stream = nullptr;
    uint64_t slot = 0;      // its offset, the same on all ranks
    bool writable = false;  // the caller may write to the slot: nobody else reads it then
    bool kept = false;      // its contents are still right: ranks agree, nothing moves
    bool again = false;     // written again without having been given back
    uint64_t hash = 0;      // hash of everything that ranks must agree on
    uint8_t flags = 0;
  };
  virtual Status gather(const Gather& gather) = 0;
  struct Reduce {
    cuda::CUstream stream = nullptr;
    uint64_t slot = 0;
    ReduceRun run;
    uint64_t hash = 0;
    uint8_t flags = 0;
  };
  virtual Status reduce(const Reduce& reduce) = 0;

  // Returns the waits, beside the stream of the last operation, that must be over before its slot
  // is written: peers read the slot.
  virtual std::vector<cuda::CUstreamBatchMemOpParams> released(Track::Kind kind) const = 0;
  // By the host: until all that was put on streams is over, or has failed.
  virtual void finish(Track::Kind kind) const = 0;
};

}  // namespace fsccl
