#include "device/device_mover.h"

#include "base/config.h"
#include "device/p2p_mover.h"

namespace fsccl {

Result<std::unique_ptr<DeviceMover>> DeviceMover::create(const Request& request) {
  Communicator& comm = *request.spec.shard_comm;
  const auto mine = static_cast<uint8_t>(config()->device_transport);
  std::vector<uint8_t> all(static_cast<size_t>(comm.size()));
  FSCCL_TRY(fsccl::gather(comm, &mine, all.data(), 1));
  for (size_t rank = 0; rank < all.size(); rank++)
    if (all[rank] != mine)
      return fail(FSCCL_ERR_MISMATCH, "FSCCL_DEVICE_TRANSPORT is not the same on rank {} as on rank {}: set it alike on all ranks",
                  rank, comm.rank());
  switch (static_cast<DeviceTransport>(mine)) {
    case DeviceTransport::kAuto:
    case DeviceTransport::kP2p:
      return P2pMover::create(request);
    default:
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "unit '{}': units on GPUs move by peer-to-peer access in this release: FSCCL_DEVICE_TRANSPORT=p2p, or auto",
                  request.spec.name);
  }
}

}  // namespace fsccl
