// Barrier: every rank enters, and waits until all others have entered.
#include "plan/build.h"
#include "plan/collectives.h"

namespace fsccl {

Plan barrier(int rank, int ranks) { return Builder("barrier", rank, ranks, 1).barrier_only(); }

}  // namespace fsccl
