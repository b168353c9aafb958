// Plans of the operations of a unit, made from its layout. With S slots (one, or one for each of
// the plan's parameters), buffers are the same on all ranks, in this order:
//   unshard     0 .. S - 1: slots; S + k: shard of the k-th parameter (input, in the parameter's
//               dtype; 0 bytes where the rank holds none or it is tied)
//   reduce      0 .. S - 1: gradient slots; S + k: sharded gradient of the k-th parameter (output)
//   broadcast   i: shard of parameter i (inout)
//
// If a unit's ranks are on several hosts, each of its plans is of the ranks of one host. The bytes
// of other hosts come and go through the slots of this host by exchanges that are not part of these
// plans (unit/host/unit_hosts.cpp). A plan gathers the pieces of the host's own ranks in the slots,
// or distributes the pieces that have come from other hosts, or leaves the host's part of a sum in
// the slots. UnitShape::acts_for says which pieces each rank acts for.
#pragma once
#include <optional>
#include <vector>

#include "layout/layout.h"
#include "plan/plan.h"

namespace fsccl {

// For units on several hosts: the place in its slot to which the rank that sums a piece writes the
// host's sum. The sum has the accumulator's type.
struct SumOffsets {
  fsccl_dtype_t dtype = FSCCL_FLOAT32;
  std::vector<std::vector<uint64_t>> offset;  // [parameter][rank of the layout that has the piece]
};

struct UnitShape {
  const Layout* layout = nullptr;
  int rank = 0;
  std::vector<fsccl_dtype_t> shard_dtype;  // per parameter
  // By parameter: the wire dtype (unshard) or the reduce dtype (reduce).
  std::vector<fsccl_dtype_t> slot_dtype;
  std::vector<fsccl_dtype_t> grad_dtype;  // per parameter: dtype of the sharded gradient (reduce)
  SlotMap slot;                           // absent parameters are left out
  std::optional<std::vector<size_t>> params;  // the parameters of the plan, in order; none: all
  // For each rank of the plan, the ranks of the layout for which it acts. If it is empty, each rank
  // acts for itself.
  std::vector<std::vector<int>> acts_for;
  SumOffsets sums;
};

// Unshards into host-shared slots: wait_released(slot), cast each piece of this rank from its shard
// to its final place in a slot, signal, wait for all. One tick. Slots are shared and guarded.
Plan unshard_shared(const UnitShape&);
// Is only a barrier, for a slot whose contents are valid already. One tick. It moves nothing.
Plan unshard_barrier(const UnitShape&);
// Unshards into private slots (symmetric, guarded): wait_released(slot), cast own pieces into own
// slots, signal, pull every peer's pieces from the peer's slots (rotated order), one copy per
// (peer, parameter), or fewer where pieces touch. `writable`: two ticks. The slot is this rank's
// own when the plan ends, because all have pulled. Otherwise one tick: peers may read the slot
// until they release it, so this rank must not write to it.
Plan unshard_private(const UnitShape&, bool writable);
// Reduces gradients from the gradient slots of all ranks (symmetric, guarded): signal, wait for
// all, reduce this rank's piece of every parameter straight into its sharded gradient. One tick.
Plan reduce_grads(const UnitShape&);
// Has the steps of reduce_grads before its sums, which need no other rank: signal, wait for all.
// The sums may be made while later plans run (engine/sums_apart.h), because the slots that they
// read are guarded.
Plan reduce_grads_enter(const UnitShape&);
// Unshards private slots in which each rank already has the pieces for which it acts: each rank
// pulls the pieces of the others. Two ticks, so the caller may write to its slots when the plan
// ends.
Plan unshard_pull(const UnitShape&);
// Reduces from gradient slots like those of reduce_grads: each rank reduces the pieces for which it
// acts over the ranks of the plan, and puts the sums into its own slots at the offsets of `sums`.
// One tick.
Plan reduce_partials(const UnitShape&);
// Broadcasts all shards of `root` to the other ranks. The unit exchanged the addresses of the
// buffers when it was made (`address_exchanged`).
Plan broadcast_shards(const std::vector<uint64_t>& bytes, int rank, int ranks, int root);

}  // namespace fsccl
