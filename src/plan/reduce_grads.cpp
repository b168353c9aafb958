// Reduction of a unit's gradients: each rank reduces its piece of every parameter from the gradient
// slots of all ranks, in rank order, straight into its sharded gradient. The slots are guarded:
// they are written again only after every rank has released them.
#include "plan/unit_build.h"

namespace fsccl {

namespace {

Builder begin(const UnitShape& shape) {
  Builder build("reduce_grads", shape.rank, ranks_of(shape), 1);
  const Buffer slot{
      .name = "gradient slot", .role = Role::input, .guarded = true, .symmetric = true};
  add_unit_buffers(build, shape, slot, Role::output, shape.grad_dtype);
  build.signal(0);
  build.wait_all(0);
  return build;
}

}  // namespace

Plan reduce_grads_enter(const UnitShape& shape) { return begin(shape).take(); }

Plan reduce_grads(const UnitShape& shape) {
  Builder build = begin(shape);
  for_each_piece(shape, shape.rank, [&](const UnitPiece& own) {
    build.reduce(build.mine(own.shard, 0), shape.grad_dtype[own.parameter],
                 build.mine(own.slot, own.offset), shape.slot_dtype[own.parameter],
                 own.piece.count);
  });
  return build.take();
}

}  // namespace fsccl
