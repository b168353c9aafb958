// Plans of the operations of a unit, made from its layout. With S slots (one, or one for each of
// the plan's parameters), buffers are the same on all ranks, in this order:
//   unshard     0 .. S - 1: slots; S + k: shard of the k-th parameter (input, in the parameter's
//               dtype; 0 bytes where the rank holds none or it is tied)
//   reduce      0 .. S - 1: gradient slots; S + k: sharded gradient of the k-th parameter (output)
//   broadcast   i: shard of parameter i (inout)
//
// Between hosts a unit's plans are those of the ranks of one host, with what other hosts have of it
// going through this host's slots (UnitShape::holds; unit/host/unit_hosts.cpp puts them together):
// each gathers in them what its own ranks hold, or passes on what has come from others, or leaves
// in them its host's part of a sum.
#pragma once
#include <vector>

#include "layout/layout.h"
#include "plan/plan.h"

namespace fsccl {

// Between hosts: where in its slot the sum of a piece is taken, by who sums it, in the
// accumulator's type.
struct SumOffsets {
  fsccl_dtype_t dtype = FSCCL_FLOAT32;
  std::vector<std::vector<uint64_t>> offset;  // [parameter][rank of the layout]: of its piece
};

struct UnitShape {
  const Layout* layout = nullptr;
  int rank = 0;
  std::vector<fsccl_dtype_t> shard_dtype;  // per parameter
  // per parameter: wire dtype (unshard), reduce dtype (reduce)
  std::vector<fsccl_dtype_t> slot_dtype;
  std::vector<fsccl_dtype_t> grad_dtype;  // per parameter: of the sharded gradient (reduce)
  SlotMap slot;                           // absent parameters are left alone
  std::vector<size_t> params;             // the parameters of the plan, in their order; empty: all
  // For each rank of the plan, the ranks of the layout that it acts for. Empty: each rank acts for
  // itself.
  std::vector<std::vector<int>> holds;
  SumOffsets sums;
};

// Host-shared slots: wait_released(slot), cast each piece of this rank from its shard to its final
// place in a slot, signal, wait for all. One tick. Slots are shared and guarded.
Plan unshard_shared(const UnitShape&);
// The slot's contents are still valid: enter and wait for all. One tick, moves nothing.
Plan unshard_barrier(const UnitShape&);
// Slots of its own on every rank (symmetric, guarded): wait_released(slot), cast own pieces into
// own slots, signal, pull every peer's pieces from the peer's slots (rotated order), one copy per
// (peer, parameter), or fewer where pieces touch. `writable`: two ticks. The slot is this rank's
// own when the plan ends, because all have pulled. Otherwise one tick: peers may read the slot
// until they release it, so this rank must not write to it.
Plan unshard_private(const UnitShape&, bool writable);
// Gradient slots on every rank (symmetric, guarded): signal, wait for all, reduce this rank's piece
// of every parameter straight into its sharded gradient. One tick.
Plan reduce_grads(const UnitShape&);
// The steps of reduce_grads up to its sums, for which a rank needs nobody else: signal, wait for
// all. The sums may be made while later plans run (engine/sums_apart.h), because the slots that
// they read are guarded.
Plan reduce_grads_enter(const UnitShape&);
// Slots of its own on every rank: each has in its slots what it holds; the others pull it. Two
// ticks: the slots are the ranks' own when the plan ends.
Plan unshard_pull(const UnitShape&);
// Gradient slots as of reduce_grads: each rank reduces what it holds over the ranks of the plan,
// into its own slots where `sums` has it. One tick.
Plan reduce_partials(const UnitShape&);
// All parameters' shards from `root`, one enter, one leave. Buffers are `address_exchanged` (the
// engine exchanged their addresses when the unit was made).
Plan broadcast_shards(const std::vector<uint64_t>& bytes, int rank, int ranks, int root);

}  // namespace fsccl
