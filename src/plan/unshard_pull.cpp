// Between hosts, into slots of this rank's own: some ranks of the host have what other hosts
// brought, and each pulls it from the slots of who has it.
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
