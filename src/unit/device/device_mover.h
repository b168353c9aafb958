// The interface of the movers, which move a unit's bytes between GPUs. The unit manages states,
// slots and storage, and makes these calls in the order of its program, the same on all ranks. The
// mover is chosen when the unit is made (select/unit_algorithm.h).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "select/unit_algorithm.h"
#include "unit/device/stream_program.h"
#include "unit/device/track.h"
#include "unit/unit_definition.h"

namespace fsccl {

class CodedDeviceGather;
class CodedDeviceSum;
class DevicePool;

// Chooses how `bytes` bytes move between the slots of all ranks of `among`, and logs the choice.
// Collective over them, blocking: all get the same answer. `reaches` says that this rank reaches
// the slots of the others. `what` names the operation in the log.
Result<UnitAlgorithm> agree_on_algorithm(Communicator& among, uint64_t bytes, bool reaches,
                                         const std::string& what);

class DeviceMover {
 public:
  // The parts of a mover; all of them outlive it.
  struct Request {
    const UnitSpec& spec;
    const UnitDefinition& definition;
    DevicePool& pool;
  };
  // Makes the chosen mover. Collective over the unit's shard_comm, blocking: all ranks get a mover
  // of the same kind, or all get an error. The error is FSCCL_ERR_NOT_AVAILABLE, with the reason,
  // if a rank cannot use the mover.
  static Result<std::unique_ptr<DeviceMover>> create(const Request& request);
  virtual ~DeviceMover() = default;  // waits until what was put on streams is over

  // These set the places of this rank's shards and of its sharded gradients. They wait for the work
  // that still uses the old places.
  virtual Status place_shards(const std::vector<std::byte*>& shards) = 0;
  virtual Status place_sharded_grads(const std::vector<std::byte*>& grads) = 0;

  // Is called before a slot of this kind is taken on `stream`, or before gather() and reduce() if
  // no slot is taken. Work that is put on the stream from now on follows the unit's last operation
  // of the kind.
  virtual Status begin(Track::Kind kind, cuda::CUstream stream) = 0;
  // Is called after begin() instead of an operation: a slot was taken (none), or another part did
  // `what` with the shards. The next operation of the kind follows it.
  virtual Status took(Track::Kind kind, cuda::CUstream stream, OpCode what = OpCode::none) = 0;

  struct Gather {
    cuda::CUstream stream = nullptr;
    uint64_t slot = 0;      // its offset, the same on all ranks
    bool writable = false;  // the caller may write to the slot when peers no longer read it
    bool kept = false;      // the slot's contents are valid: the ranks agree, and nothing moves
    bool again = false;     // the slot is written again, and was not given back in between
    bool changed = true;    // the shards may have changed since the last gather
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

  // Returns the waits that must be over before the slot of the last operation is written, besides
  // that operation's stream: peers read the slot.
  virtual std::vector<cuda::CUstreamBatchMemOpParams> released(Track::Kind kind) const = 0;
  // Waits on the host until all work that was put on streams is over, or has failed.
  virtual void finish(Track::Kind kind) const = 0;

  // These are for units with codecs. look() fails the communicator if an operation that is over got
  // codes that could not be decoded. coded_gather() and coded_sum() return the gather and the sum
  // that use a codec, or null.
  virtual void look() const {}
  virtual const CodedDeviceGather* coded_gather() const { return nullptr; }
  virtual const CodedDeviceSum* coded_sum() const { return nullptr; }
};

}  // namespace fsccl
