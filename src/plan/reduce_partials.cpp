// Between hosts, the part of a gradient's sum that is over the ranks of one host: each of them folds the pieces that it takes to
// the other hosts, or that it keeps, into its own gradient slots, where its own contribution was. Nobody else reads those places:
// they are held by one rank.
#include "plan/unit_build.h"

namespace fsccl {

Plan reduce_partials(const UnitShape& shape) {
  Builder build("reduce_partials", shape.rank, ranks_of(shape), 1);
  add_slots(build, shape, {.name = "gradient slot", .role = Role::inout, .guarded = true, .symmetric = true});
  build.signal(0);
  build.wait_all(0);
  for_each_piece(shape, shape.rank, [&](const UnitPiece& held) {
    const Place place = build.here(held.slot, held.offset);
    const fsccl_dtype_t dtype = shape.slot_dtype[held.parameter];
    build.reduce(place, dtype, place, dtype, held.piece.count);
  });
  return build.take();
}

}  // namespace fsccl
