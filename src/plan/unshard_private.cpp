// Unshard into slots of this rank's own: each rank writes its own pieces into its own slots and
// pulls every peer's pieces from the peer's. Peers read a slot until they release what they made of
// it, so it is written only after everybody has released what was there before.
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
