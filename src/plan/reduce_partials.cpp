// The first stage of a sum of gradients over several hosts: the sum over the ranks of one host.
// Each rank of the host reduces the pieces that it will exchange with other hosts, or that it
// keeps, into its own gradient slots. If a sum has the gradients' type, it replaces this rank's own
// contribution; else it lies behind the gradients. No other rank reads either place, because one
// rank acts for each piece.
#include "plan/unit_build.h"

namespace fsccl {

Plan reduce_partials(const UnitShape& shape) {
  Builder build("reduce_partials", shape.rank, ranks_of(shape), 1);
  add_slots(build, shape,
            {.name = "gradient slot", .role = Role::inout, .guarded = true, .symmetric = true});
  build.signal(0);
  build.wait_all(0);
  for_each_piece(shape, shape.rank, [&](const UnitPiece& held) {
    const uint64_t sum = shape.sums.offset[held.parameter][static_cast<size_t>(held.rank)];
    build.reduce(build.mine(held.slot, sum), shape.sums.dtype, build.mine(held.slot, held.offset),
                 shape.slot_dtype[held.parameter], held.piece.count);
  });
  return build.take();
}

}  // namespace fsccl
