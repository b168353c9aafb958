// The actions with which a stream carries out a rank's plan of a unit: the plan's steps in their
// order, with consecutive steps of one kind joined. A unit therefore takes one launch to cast, one
// batch to signal, one to wait, and one to copy, whatever the number of its parameters and peers.
// This file only computes.
//
// Waits that have copies between them are joined before these copies. This is right: this rank
// sends no signal between the waits, so no rank waits for it meanwhile, and a copy that is right
// after some signals is right after more.
//
// A gather puts these steps on the stream of each rank:
//   begin  1 value; waits for the unit's last operation if that was on another stream, and tells
//          the host that the stream has come here
//   take   events and values; waits for the last use of the slot's bytes by this rank's streams and
//          by the peers that read them (DevicePool::take)
//   cast   1 launch, or 1 batch of the copy engines where no type differs; brings this rank's
//          pieces from its shards to their final places in its slot
//   ready  1 batch; writes a word into every peer's inbox
//   wait   1 batch; waits for every peer's word in this rank's inbox
//   copy   1 batch of the copy engines, or 1 launch; copies every piece from its peer's slot to the
//          same place in this rank's slot
//   done   1 batch; writes a word into every peer's inbox (its slot has been read), and one for the
//          host (the operation is over)
// A reduction has one launch, which reads the slots of all ranks, between `wait` and `done`. A
// reshard puts nothing on the stream: the pool keeps the event and the words that peers owe, and
// whoever takes the bytes next waits for them. A slot that must be the rank's own to write has the
// waits for `done` at its end.
#pragma once
#include <vector>

#include "kernels/cuda/device_kernels.h"
#include "plan/plan.h"

namespace fsccl {

// A copy from the slot of `peer` to this rank's slot of the same unit; `from` and `to` are offsets.
struct CopyRange {
  int peer = 0;
  uint64_t from = 0, to = 0, count = 0;  // elements
  fsccl_dtype_t dtype = FSCCL_UINT8;
  uint64_t bytes() const { return count * dtype_size(dtype); }
};

struct StreamAction {
  enum class Kind : uint8_t {
    cast,  // casts own pieces into the own slot by one launch
    // copies own pieces into the own slot if no type differs: one batch of the copy engines, which
    // do not use the multiprocessors
    place,
    signal,   // one batch of values
    wait,     // a wait
    copy,     // copies pieces from peers' slots by one batch of the copy engines
    scatter,  // copies pieces from peers' slots by one launch
    reduce,   // one launch
  };
  Kind kind{};
  int tick = 0;            // the tick of a signal or a wait
  std::vector<int> peers;  // the peers that a wait waits for; all peers if empty
  // For a cast or a place: the source is an address, and the destination an offset in the slot.
  std::vector<cuda::CastRange> casts;
  std::vector<CopyRange> copies;           // copy, scatter
  std::vector<cuda::ReduceRange> reduces;  // offset: in the slot
};

struct StreamPlan {
  int rank = 0, ranks = 1;
  bool says_done = false;  // the plan's last signal says that this rank reads its peers no more
  std::vector<StreamAction> actions;
};

// Pieces that are shorter than this on average are copied by a kernel, which copies all of them at
// once, because a copy engine has a start-up time for each piece. The best limit is a property of
// the device, which perf/gpu is to measure. This value is about the size whose copy takes as long
// as the start.
inline constexpr uint64_t kScatterBelow = 64 << 10;

struct StreamOptions {
  uint64_t scatter_below = kScatterBelow;
  static StreamOptions& of_process();  // for measuring, and for tests: set before units are made
};

// Makes the actions of a plan. `slots` is the number of the plan's first buffers that are slots.
// `places` has the address of each other buffer on this rank. Returns FSCCL_ERR_INTERNAL if the
// plan has a step that plans of units do not have.
Result<StreamPlan> compile(const Plan& plan, size_t slots,
                           const std::vector<cuda::CUdeviceptr>& places,
                           const StreamOptions& options);

}  // namespace fsccl
