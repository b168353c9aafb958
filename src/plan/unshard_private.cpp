// Unshard into private slots: each rank has slots of its own, writes its own pieces into them, and
// pulls every peer's pieces from the peer's slots. Peers may read a slot until they release their
// own, so a slot is written only after every rank has released the former contents.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_private(const UnitShape& shape, bool writable) {
  const int ranks = ranks_of(shape);
  const bool leave = writable && ranks > 1;
  Builder build("unshard_private", shape.rank, ranks, leave ? 2 : 1);
  const Buffer slot{.name = "slot",
                    .role = Role::output,
                    .guarded = true,
                    .symmetric = true,
                    .writable = writable};
  add_unit_buffers(build, shape, slot, Role::input, shape.shard_dtype);
  cast_own_pieces(build, shape);
  return pull_from_peers(build, shape, leave);
}

}  // namespace fsccl
