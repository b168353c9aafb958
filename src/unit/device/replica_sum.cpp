#include "unit/device/replica_sum.h"

#include <algorithm>

#include "pool/device/device_pool.h"
#include "unit/device/p2p_replica_sum.h"
#include "unit/device/replica_calls.h"

namespace fsccl {

Result<std::unique_ptr<ReplicaSum>> ReplicaSum::create(const DeviceMover::Request& request) {
  Communicator& replicas = *request.spec.replicate_comm;
  const uint64_t bytes = slot_bytes(request.spec, *request.definition.layout);
  FSCCL_ASSIGN(const UnitAlgorithm algorithm,
               agree_on_algorithm(replicas, bytes * static_cast<uint64_t>(replicas.size()),
                                  request.pool.slots_of(replicas).ok(),
                                  fmt::format("unit '{}' sums over replicas", request.spec.name)));
  return algorithm == UnitAlgorithm::p2p ? P2pReplicaSum::create(request)
                                         : ReplicaCalls::create(request);
}

uint64_t ReplicaSum::slot_bytes(const UnitSpec& spec, const Layout& layout) {
  uint64_t most = 0;
  for (int rank = 0; spec.replicate_comm && rank < spec.shard_comm->size(); rank++) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < spec.params.size(); i++)
      if (!spec.params[i].frozen && !layout.tied(i))
        bytes += P2pReplicaSum::room(spec, layout.piece(rank, i).count);
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace fsccl
