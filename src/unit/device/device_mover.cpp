#include "unit/device/device_mover.h"

#include "base/config.h"
#include "base/log.h"
#include "pool/device/reach.h"
#include "select/unit_algorithm.h"
#include "unit/device/collective_unit_mover.h"
#include "unit/device/p2p_mover.h"

namespace fsccl {
Result<std::unique_ptr<DeviceMover>> DeviceMover::create(const Request& request) {
  FSCCL_ASSIGN(const bool reached,
               agree_on_reach(*request.spec.shard_comm, P2pMover::reaches_all(request)));
  Communicator& comm = *request.spec.shard_comm;
  const UnitChoice choice =
      choose_unit_algorithm(unit_call(request.definition.wire_map.bytes, comm.size(),
                                      comm.one_host(), config()->device_transport,
                                      reached ? "" : "not all ranks reach each other's slots"),
                            comm.collectives().options().select);
  FSCCL_LOG(kInfo, "unit '{}' moves its bytes by {}: {}", request.spec.name,
            kUnitAlgorithmNames[static_cast<size_t>(choice.algorithm)], choice.why);
  return choice.algorithm == UnitAlgorithm::p2p ? P2pMover::create(request)
                                                : CollectiveUnitMover::create(request);
}

}  // namespace fsccl
