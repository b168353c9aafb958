// Reduction of a unit's gradients: each rank folds its piece of every parameter from all gradient slots, in rank order, straight
// into its sharded gradient. The slots are guarded: they are written again only after every rank released them.
#include "plan/unit_build.h"

namespace fsccl {

Plan reduce_grads(const UnitShape& shape) {
  Builder build("reduce_grads", shape.rank, shape.layout->ranks(), 1);
  Buffer& slot = build.buffer("gradient slot", Role::input, shape.slot.bytes);
  slot.symmetric = slot.guarded = true;
  for (size_t i = 0; i < shape.layout->size(); ++i) {
    const bool present = !shape.layout->tied(i) && shape.slot.offset[i] != SlotMap::kAbsent;
    const uint64_t count = present ? shape.layout->piece(shape.rank, i).count : 0;
    build.buffer("sharded gradient " + std::to_string(i), Role::output, count * dtype_size(shape.grad_dtype[i]));
  }
  build.signal(0);
  build.wait_all(0);
  for_each_piece(shape, shape.rank, [&](size_t i, const Piece& piece, uint64_t offset) {
    build.reduce(build.here(static_cast<uint32_t>(1 + i), 0), shape.grad_dtype[i], build.here(0, offset), shape.slot_dtype[i],
                 piece.count);
  });
  return build.take();
}

}  // namespace fsccl
