// Between hosts, into slots of this rank's own: some ranks of the host have what other hosts brought, and each pulls it from the
// slots of who has it.
#include "plan/unit_build.h"

namespace fsccl {

Plan unshard_spread(const UnitShape& shape, bool writable) {
  const int ranks = ranks_of(shape);
  const bool leave = writable && ranks > 1;
  Builder build("unshard_spread", shape.rank, ranks, leave ? 2 : 1);
  add_slots(build, shape, {.name = "slot", .role = Role::inout, .guarded = true, .symmetric = true, .writable = writable});
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
