#include "unit/device/device_mover.h"

#include "base/config.h"
#include "pool/device/reach.h"
#include "unit/device/collective_unit_mover.h"
#include "unit/device/p2p_mover.h"

namespace fsccl {

Result<std::unique_ptr<DeviceMover>> DeviceMover::create(const Request& request) {
  FSCCL_ASSIGN(const bool reached,
               agree_on_reach(*request.spec.shard_comm, P2pMover::reaches_all(request)));
  switch (config()->device_transport) {
    case DeviceTransport::kAuto:
      return reached ? P2pMover::create(request) : CollectiveUnitMover::create(request);
    case DeviceTransport::kP2p:
      return P2pMover::create(request);
    default:
      return CollectiveUnitMover::create(request);
  }
}

}  // namespace fsccl
