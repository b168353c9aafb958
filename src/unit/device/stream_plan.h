// The actions with which a stream carries out a rank's plan of a unit: the plan's steps in their
// order, with consecutive steps of one kind put together. A unit therefore takes one launch to
// cast, one batch to signal, one to wait, and one to copy, whatever the number of its parameters
// and peers. Pure arithmetic.
//
// Waits are put before the copies that stand between them. From there to the wait this rank sends
// no signal, so no rank can wait for it meanwhile, and a copy that is right after some signals is
// right after more.
#pragma once
#include <vector>

#include "kernels/cuda/device_kernels.h"
#include "plan/plan.h"

namespace fsccl {

// From a slot of `peer` to the same unit's slot here; offsets in the slots.
struct CopyRange {
  int peer = 0;
  uint64_t from = 0, to = 0, count = 0;  // elements
  fsccl_dtype_t dtype = FSCCL_UINT8;
  uint64_t bytes() const { return count * dtype_size(dtype); }
};

struct StreamAction {
  enum class Kind : uint8_t {
    cast,  // own pieces into the own slot: one launch
    // the same where no type differs: one batch of the copy engines, which leave the
    // multiprocessors alone
    place,
    signal,   // one batch of values
    wait,     // a wait
    copy,     // out of peers' slots: one batch on the copy engines
    scatter,  // the same by one launch
    reduce,   // one launch
  };
  Kind kind{};
  int tick = 0;            // signal, wait
  std::vector<int> peers;  // wait; empty: all
  // cast, place; source: an address; destination: an offset in the slot
  std::vector<cuda::CastRange> casts;
  std::vector<CopyRange> copies;           // copy, scatter
  std::vector<cuda::ReduceRange> reduces;  // offset: in the slot
};

struct StreamPlan {
  int rank = 0, ranks = 1;
  bool says_done = false;  // the plan's last signal says that this rank reads its peers no more
  std::vector<StreamAction> actions;
};

// Pieces, of peers or own, of less than this on average are copied by a kernel: a copy engine
// starts each piece anew, a kernel takes them all at once. Where the two meet is a property of the
// device, which perf/gpu is to measure: until then a round number of the size at which one piece is
// as long as what starts it.
inline constexpr uint64_t kScatterBelow = 64 << 10;

struct StreamOptions {
  uint64_t scatter_below = kScatterBelow;
  static StreamOptions& of_process();  // for measuring, and for tests: set before units are made
};

// `slots`: the plan's first buffers are; `places`: address of each of the others on this rank.
// FSCCL_ERR_INTERNAL: a step that is none of a unit's.
Result<StreamPlan> compile(const Plan& plan, size_t slots,
                           const std::vector<cuda::CUdeviceptr>& places,
                           const StreamOptions& options);

}  // namespace fsccl
