// Collectives on private memory where no rank may read another's: in chunks through scratch. The ranks first vote (one tiny
// exchange) whether anybody needs it; if nobody does the operation goes on as planned. Cost against single copy: two more copies by
// the user's cores, and a meeting per chunk.
#pragma once
#include "engine/collective.h"

namespace fsccl {

// Turns `op` into vote, then chunks or the direct plan. `reachable`: peers can reach this rank's buffers as bound.
Status begin_staged(Collectives& collectives, Operation& op, const CollectiveCall& call, bool reachable);

}  // namespace fsccl
