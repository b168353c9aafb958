#include "device/device_mover.h"

#include "base/config.h"
#include "device/nccl_unit_mover.h"
#include "device/p2p_mover.h"

namespace fsccl {

Result<std::unique_ptr<DeviceMover>> DeviceMover::create(const Request& request) {
  Communicator& comm = *request.spec.shard_comm;
  struct Vote {
    uint8_t transport, reaches;
  };
  const Vote mine{static_cast<uint8_t>(config()->device_transport), P2pMover::reaches_all(request)};
  std::vector<Vote> all(static_cast<size_t>(comm.size()));
  FSCCL_TRY(fsccl::gather(comm, &mine, all.data(), sizeof mine));
  bool reached = true;
  for (size_t rank = 0; rank < all.size(); rank++) {
    reached = reached && all[rank].reaches;
    if (all[rank].transport != mine.transport)
      return fail(FSCCL_ERR_MISMATCH, "FSCCL_DEVICE_TRANSPORT is not the same on rank {} as on rank {}: set it alike on all ranks",
                  rank, comm.rank());
  }
  switch (static_cast<DeviceTransport>(mine.transport)) {
    case DeviceTransport::kAuto:
      return reached ? P2pMover::create(request) : NcclUnitMover::create(request);
    case DeviceTransport::kP2p:
      return P2pMover::create(request);
    case DeviceTransport::kNccl:
      return NcclUnitMover::create(request);
    case DeviceTransport::kStaged:
      break;
  }
  return fail(
      FSCCL_ERR_NOT_AVAILABLE,
      "unit '{}': units on GPUs move by peer-to-peer access or NCCL, and not through host memory: FSCCL_DEVICE_TRANSPORT=auto",
      request.spec.name);
}

}  // namespace fsccl
