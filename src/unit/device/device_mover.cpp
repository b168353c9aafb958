#include "unit/device/device_mover.h"

#include "base/config.h"
#include "base/log.h"
#include "pool/device/reach.h"
#include "unit/device/collective_unit_mover.h"
#include "unit/device/p2p_mover.h"

namespace fsccl {

Result<UnitAlgorithm> agree_on_algorithm(Communicator& among, uint64_t bytes, bool reaches,
                                         const std::string& what) {
  FSCCL_ASSIGN(const bool reached, agree_on_reach(among, reaches));
  const UnitChoice choice = choose_unit_algorithm(
      unit_call(bytes, among.size(), among.one_host(), config()->device_transport,
                reached ? "" : "not all ranks reach each other's slots"),
      among.collectives().options().select);
  FSCCL_LOG(kInfo, "{} by {}: {}", what, kUnitAlgorithmNames[static_cast<size_t>(choice.algorithm)],
            choice.why);
  return choice.algorithm;
}

Result<std::unique_ptr<DeviceMover>> DeviceMover::create(const Request& request) {
  if (request.spec.gathers_coded() || request.spec.reduces_coded()) {
    FSCCL_LOG(kInfo, "unit '{}' moves its bytes by collectives: it has a codec", request.spec.name);
    return CollectiveUnitMover::create(request);
  }
  FSCCL_ASSIGN(const UnitAlgorithm algorithm,
               agree_on_algorithm(*request.spec.shard_comm, request.definition.wire_map.bytes,
                                  P2pMover::reaches_all(request),
                                  fmt::format("unit '{}' moves its bytes", request.spec.name)));
  return algorithm == UnitAlgorithm::p2p ? P2pMover::create(request)
                                         : CollectiveUnitMover::create(request);
}

}  // namespace fsccl
