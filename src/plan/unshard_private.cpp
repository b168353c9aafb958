// Unshard into slots of this rank's own: each rank writes its own pieces into its own slots and pulls every peer's pieces from the
// peer's. Peers read a slot until they release what they made of it, so it is written only after everybody has released what was
// there before.
#include "plan/unit_build.h"

namespace fsccl {
namespace {

// One copy per piece; pieces that touch (flat layouts, where parameters lie end to end) become one.
void pull_pieces(Builder& build, const UnitShape& shape, int q) {
  for_each_piece(shape, q, [&](const UnitPiece& its) {
    const fsccl_dtype_t dtype = shape.slot_dtype[its.parameter];
    Step* last = build.last();
    const bool touches = last && last->kind == StepKind::copy && last->src.rank == q && last->src.buffer == its.slot &&
                         last->from == dtype && last->src.offset + last->count * dtype_size(dtype) == its.offset;
    if (touches) {
      last->count += its.piece.count;
    } else {
      build.copy(build.here(its.slot, its.offset), build.at(q, its.slot, its.offset), its.piece.count, dtype);
    }
  });
}

}  // namespace

Plan unshard_private(const UnitShape& shape, bool writable) {
  const int ranks = shape.layout->ranks();
  const bool leave = writable && ranks > 1;
  Builder build("unshard_private", shape.rank, ranks, leave ? 2 : 1);
  const Buffer slot{.name = "slot", .role = Role::output, .guarded = true, .symmetric = true, .writable = writable};
  add_unit_buffers(build, shape, slot, Role::input, shape.shard_dtype);
  cast_own_pieces(build, shape);
  build.signal(0);
  for (int i = 1; i < ranks; ++i) {
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

}  // namespace fsccl
