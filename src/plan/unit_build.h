// The functions that the builders of a unit's plans share: they add the buffers, and the steps that
// write this rank's pieces into the slots or pull the pieces of peers.
#pragma once
#include <numeric>

#include "plan/build.h"
#include "plan/unit_plans.h"

namespace fsccl {

// The piece of a parameter that a rank of the layout holds, and the plan's buffers for it.
struct UnitPiece {
  size_t parameter = 0;
  int rank = 0;  // rank of the layout
  Piece piece;
  uint32_t slot = 0, shard = 0;  // buffers
  uint64_t offset = 0;           // offset of the piece in the slot
};

inline std::vector<size_t> parameters_of(const UnitShape& shape) {
  if (shape.params) return *shape.params;
  std::vector<size_t> list(shape.layout->size());
  std::iota(list.begin(), list.end(), size_t{0});
  return list;
}

inline int ranks_of(const UnitShape& shape) {
  return shape.acts_for.empty() ? shape.layout->ranks() : static_cast<int>(shape.acts_for.size());
}

// Calls visit(UnitPiece) for every piece of `layout_rank` that is not empty and has a slot. Tied
// parameters are left out, because their owners have the pieces.
template <class Visit>
void for_each_piece_of(const UnitShape& shape, int layout_rank, Visit visit) {
  const std::vector<size_t> list = parameters_of(shape);
  const size_t slots = shape.slot.by_parameter ? list.size() : 1;
  for (size_t k = 0; k < list.size(); ++k) {
    const size_t i = list[k];
    if (shape.layout->tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
    const Piece piece = shape.layout->piece(layout_rank, i);
    if (piece.count == 0) continue;
    visit(UnitPiece{i, layout_rank, piece, static_cast<uint32_t>(shape.slot.by_parameter ? k : 0),
                    static_cast<uint32_t>(slots + k),
                    shape.slot.offset[i] + piece.begin * dtype_size(shape.slot_dtype[i])});
  }
}

// Calls visit(UnitPiece) for every piece that `rank` of the plan acts for.
template <class Visit>
void for_each_piece(const UnitShape& shape, int rank, Visit visit) {
  if (shape.acts_for.empty()) return for_each_piece_of(shape, rank, visit);
  for (const int held : shape.acts_for[static_cast<size_t>(rank)])
    for_each_piece_of(shape, held, visit);
}

// Adds the slots of a unit's plan, numbered as in unit_plans.h. Each has the properties of `slot`.
inline void add_slots(Builder& build, const UnitShape& shape, const Buffer& slot) {
  const std::vector<size_t> list = parameters_of(shape);
  for (size_t k = 0; k < (shape.slot.by_parameter ? list.size() : 1); ++k) {
    std::string name = slot.name;
    if (shape.slot.by_parameter) name.append(" ").append(std::to_string(list[k]));
    Buffer& made = build.buffer(std::move(name), slot.role,
                                shape.slot.slots[shape.slot.by_parameter ? list[k] : 0]);
    made.shared = slot.shared;
    made.symmetric = slot.symmetric;
    made.guarded = slot.guarded;
    made.writable = slot.writable;
  }
}

// Adds all buffers of a unit's plan: its slots, and its shards with elements of `dtypes`.
inline void add_unit_buffers(Builder& build, const UnitShape& shape, const Buffer& slot,
                             Role shard_role, const std::vector<fsccl_dtype_t>& dtypes) {
  add_slots(build, shape, slot);
  const int own =
      shape.acts_for.empty() ? shape.rank : shape.acts_for[static_cast<size_t>(shape.rank)].front();
  for (const size_t i : parameters_of(shape)) {
    const bool present = !shape.layout->tied(i) && shape.slot.offset[i] != SlotMap::kAbsent;
    const uint64_t count = present ? shape.layout->piece(own, i).count : 0;
    std::string name = shard_role == Role::input ? "shard " : "sharded gradient ";
    build.buffer(name.append(std::to_string(i)), shard_role, count * dtype_size(dtypes[i]));
  }
}

// Pulls the pieces that peer q acts for from the slots of q, with one copy per piece. Pieces that
// touch, as in flat layouts, where parameters lie end to end, share a copy.
inline void pull_pieces(Builder& build, const UnitShape& shape, int q) {
  for_each_piece(shape, q, [&](const UnitPiece& its) {
    const fsccl_dtype_t dtype = shape.slot_dtype[its.parameter];
    Step* last = build.last();
    const bool touches = last && last->kind == StepKind::copy && last->src.rank == q &&
                         last->src.buffer == its.slot && last->from == dtype &&
                         last->src.offset + last->count * dtype_size(dtype) == its.offset;
    if (touches) {
      last->count += its.piece.count;
    } else {
      build.copy(build.mine(its.slot, its.offset), build.at(q, its.slot, its.offset),
                 its.piece.count, dtype);
    }
  });
}

// Adds the last steps of a plan whose ranks have private slots. This rank signals that its pieces
// are in its slots, and pulls the pieces of each peer once the peer has signalled. With `leave` the
// ranks signal once more when they have pulled; behind that the caller may write to its slots.
inline Plan pull_from_peers(Builder& build, const UnitShape& shape, bool leave) {
  build.signal(0);
  for (int i = 1; i < build.ranks(); ++i) {
    const int q = build.peer(i);
    build.wait(q, 0);
    pull_pieces(build, shape, q);
  }
  if (leave) {
    build.signal(1);
    build.wait_all(1);
  }
  return build.take();
}

// Waits until every rank has released the former contents of the slots, and casts this rank's
// pieces into them.
inline void cast_own_pieces(Builder& build, const UnitShape& shape) {
  const std::vector<size_t> list = parameters_of(shape);
  if (!shape.slot.by_parameter) build.wait_released(0);
  for (uint32_t k = 0; shape.slot.by_parameter && k < list.size(); ++k)
    if (shape.slot.slots[list[k]]) build.wait_released(k);
  for_each_piece(shape, shape.rank, [&](const UnitPiece& own) {
    build.cast(build.mine(own.slot, own.offset), shape.slot_dtype[own.parameter],
               build.mine(own.shard, 0), shape.shard_dtype[own.parameter], own.piece.count);
  });
}

}  // namespace fsccl
