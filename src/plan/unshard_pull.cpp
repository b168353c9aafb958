// The last stage of an unshard over several hosts into private slots. Some ranks of the host have
// received pieces of other hosts in their slots, and each rank of the host pulls these pieces from
// them.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_pull(const UnitShape& shape) {
  const int ranks = ranks_of(shape);
  Builder build("unshard_pull", shape.rank, ranks, ranks > 1 ? 2 : 1);
  add_slots(
      build, shape,
      {.name = "slot", .role = Role::inout, .guarded = true, .symmetric = true, .writable = true});
  return pull_from_peers(build, shape, ranks > 1);
}

}  // namespace fsccl
