#include "unit/device/replica_sum.h"

#include <algorithm>

#include "base/config.h"
#include "pool/device/device_pool.h"
#include "pool/device/reach.h"
#include "unit/device/p2p_replica_sum.h"
#include "unit/device/replica_calls.h"

namespace fsccl {

Result<std::unique_ptr<ReplicaSum>> ReplicaSum::create(const DeviceMover::Request& request) {
  Communicator& replicas = *request.spec.replicate_comm;
  const auto choice = config()->device_transport;
  const Result<std::vector<cuda::CUdeviceptr>> slots = request.pool.slots_of(replicas);
  FSCCL_ASSIGN(const bool reached, agree_on_reach(replicas, slots.ok()));
  if (choice == DeviceTransport::kP2p && !slots.ok())
    return fail(FSCCL_ERR_NOT_AVAILABLE, "unit '{}', over its replicate_comm: {}",
                request.spec.name, slots.status().text());
  if (choice == DeviceTransport::kP2p && !reached)
    return fail(
        FSCCL_ERR_NOT_AVAILABLE,
        "unit '{}': not all ranks of its replicate_comm reach each other's slots; their own errors "
        "say why",
        request.spec.name);
  const bool wanted = choice == DeviceTransport::kAuto || choice == DeviceTransport::kP2p;
  return reached && wanted ? P2pReplicaSum::create(request) : ReplicaCalls::create(request);
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
