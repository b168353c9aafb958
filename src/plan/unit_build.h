// What the unshard builders share: their buffers, and writing this rank's pieces into the slot.
#pragma once
#include "plan/build.h"
#include "plan/unit_plans.h"

namespace fsccl {

// Calls visit(parameter, piece, offset in the slot) for every piece that `rank` contributes: not tied, in the slot, not empty.
template <class Visit>
void for_each_piece(const UnitShape& shape, int rank, Visit visit) {
  for (size_t i = 0; i < shape.layout->size(); ++i) {
    if (shape.layout->tied(i) || shape.slot.offset[i] == SlotMap::kAbsent) continue;
    const Piece piece = shape.layout->piece(rank, i);
    if (piece.count > 0) visit(i, piece, shape.slot.offset[i] + piece.begin * dtype_size(shape.slot_dtype[i]));
  }
}

// Buffer 0 is the slot, 1 + i the shard of parameter i.
inline Buffer& add_unshard_buffers(Builder& build, const UnitShape& shape, Role slot_role) {
  build.buffer("slot", slot_role, shape.slot.bytes);
  for (size_t i = 0; i < shape.layout->size(); ++i) {
    const bool present = !shape.layout->tied(i) && shape.slot.offset[i] != SlotMap::kAbsent;
    const uint64_t count = present ? shape.layout->piece(shape.rank, i).count : 0;
    build.buffer("shard " + std::to_string(i), Role::input, count * dtype_size(shape.shard_dtype[i]));
  }
  return build.first_buffer();
}

inline void cast_own_pieces(Builder& build, const UnitShape& shape) {
  for_each_piece(shape, shape.rank, [&](size_t i, const Piece& piece, uint64_t offset) {
    build.cast(build.here(0, offset), shape.slot_dtype[i], build.here(static_cast<uint32_t>(1 + i), 0), shape.shard_dtype[i],
               piece.count);
  });
}

}  // namespace fsccl
