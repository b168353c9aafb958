// Unshard into a slot of this rank's own: each rank writes its own pieces into its own slot and pulls every peer's pieces from the
// peer's. Peers read a slot until they release what they made of it, so it is written only after everybody has released what was
// there before.
#include "plan/unit_build.h"

namespace fsccl {
namespace {

// One copy per piece; pieces that touch (flat layouts, where parameters lie end to end) become one.
void pull_pieces(Builder& build, const UnitShape& shape, int q) {
  for_each_piece(shape, q, [&](size_t i, const Piece& piece, uint64_t offset) {
    const fsccl_dtype_t dtype = shape.slot_dtype[i];
    Step* last = build.last();
    const bool touches = last && last->kind == StepKind::copy && last->src.rank == q && last->src.buffer == 0 &&
                         last->from == dtype && last->src.offset + last->count * dtype_size(dtype) == offset;
    if (touches) {
      last->count += piece.count;
    } else {
      build.copy(build.here(0, offset), build.at(q, 0, offset), piece.count, dtype);
    }
  });
}

}  // namespace

Plan unshard_private(const UnitShape& shape, bool writable) {
  const int ranks = shape.layout->ranks();
  const bool leave = writable && ranks > 1;
  Builder build("unshard_private", shape.rank, ranks, leave ? 2 : 1);
  Buffer& slot = add_unshard_buffers(build, shape, Role::output);
  slot.symmetric = slot.guarded = true;
  slot.writable = writable;
  build.wait_released(0);
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
