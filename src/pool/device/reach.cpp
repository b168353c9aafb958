#include "pool/device/reach.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/round_up.h"
#include "comm/consensus.h"
#include "comm/device/transport_names.h"

namespace fsccl {
namespace {

bool same_device(const DeviceRank& a, const DeviceRank& b) {
  return std::memcmp(a.uuid, b.uuid, sizeof a.uuid) == 0;
}

uint64_t host_of(Communicator& comm, size_t rank) {
  return comm.context().job().member(comm.job_rank(static_cast<int>(rank))).host;
}

// Returns true if this device can map the other device's memory: it is the same device, or a peer
// that this process sees.
bool maps(const cuda::Device& device, const DeviceRank& mine, const DeviceRank& other) {
  if (same_device(mine, other)) return true;
  const cuda::Driver& driver = device.driver();
  int count = 0, own = 0;
  if (driver.cuDeviceGetCount(&count) != cuda::CUDA_SUCCESS ||
      driver.cuDeviceGet(&own, device.ordinal()) != cuda::CUDA_SUCCESS)
    return false;
  for (int ordinal = 0; ordinal < count; ordinal++) {
    int peer = 0, can = 0;
    unsigned char uuid[16];
    if (driver.cuDeviceGet(&peer, ordinal) != cuda::CUDA_SUCCESS ||
        driver.cuDeviceGetUuid(uuid, peer) != cuda::CUDA_SUCCESS)
      continue;
    if (std::memcmp(uuid, other.uuid, sizeof uuid) == 0)
      return driver.cuDeviceCanAccessPeer(&can, own, peer) == cuda::CUDA_SUCCESS && can != 0;
  }
  return false;  // CUDA_VISIBLE_DEVICES hides the device
}

Status compare(const DeviceRank& mine, const DeviceRank& other, size_t rank) {
  if (!device_transport_name(other.transport) || other.granularity == 0 ||
      (other.granularity & (other.granularity - 1)) != 0)
    return fail(FSCCL_ERR_PROTOCOL, "rank {} describes its device in a way that makes no sense",
                rank);
  if (mine.transport != other.transport)
    return fail(FSCCL_ERR_MISMATCH,
                "FSCCL_DEVICE_TRANSPORT is {} here and {} on rank {}: set it alike on all ranks",
                device_transport_name(mine.transport), device_transport_name(other.transport),
                rank);
  if (mine.debug != other.debug)
    return fail(FSCCL_ERR_MISMATCH,
                "debug mode of the pool is {} here and not so on rank {}: all ranks alike",
                mine.debug ? "on" : "off", rank);
  if (mine.record != other.record)
    return fail(FSCCL_ERR_MISMATCH,
                "record of the pool is {} here and not so on rank {}: all ranks alike", mine.record,
                rank);
  return success();
}

// Returns the default limit: 90 % of the free memory, divided by the ranks on the device. The rest
// is for contexts and libraries.
uint64_t limit_of(Communicator& comm, const std::vector<DeviceRank>& all, size_t rank) {
  if (all[rank].limit_bytes) return all[rank].limit_bytes;
  uint64_t free = all[rank].free_bytes, ranks = 0;
  for (size_t other = 0; other < all.size(); other++) {
    if (!same_device(all[other], all[rank]) || host_of(comm, other) != host_of(comm, rank))
      continue;
    free = std::min(free, all[other].free_bytes);
    ranks++;
  }
  return free / 10 * 9 / ranks;
}

}  // namespace

Result<Reach> exchange_reach(Communicator& comm, const cuda::Device* device,
                             const Result<DeviceRank>& mine) {
  const auto ranks = static_cast<size_t>(comm.size()), own = static_cast<size_t>(comm.rank());
  FSCCL_TRY(all_ok(comm, mine.status().clone(), "make the pool on its GPU"));
  const DeviceRank told = mine.value();
  FSCCL_ASSIGN(const std::vector<DeviceRank> all, all_gather(comm, told));
  for (size_t rank = 0; rank < ranks; rank++) FSCCL_TRY(compare(told, all[rank], rank));

  Reach result;
  for (const DeviceRank& rank : all)
    result.granularity = std::max(result.granularity, rank.granularity);
  for (size_t rank = 0; rank < ranks; rank++) result.limits.push_back(limit_of(comm, all, rank));
  const uint64_t least = *std::min_element(result.limits.begin(), result.limits.end());
  result.slots_limit = least / result.granularity * result.granularity;
  if (!result.slots_limit)
    return fail(
        FSCCL_ERR_OUT_OF_MEMORY,
        "the smallest of the ranks' limits is {} bytes, less than one page of a GPU ({}): raise it",
        least, result.granularity);

  const auto transport = static_cast<DeviceTransport>(told.transport);
  const bool wanted = transport == DeviceTransport::kAuto || transport == DeviceTransport::kP2p;
  std::vector<char> row(ranks);
  for (size_t rank = 0; rank < ranks; rank++) {
    const bool near = wanted && told.posix_handles && all[rank].posix_handles &&
                      host_of(comm, rank) == host_of(comm, own);
    row[rank] = rank == own || (near && maps(*device, told, all[rank]));
  }
  FSCCL_ASSIGN(const std::vector<char> matrix, all_gather_rows(comm, row));
  for (size_t rank = 0; rank < ranks; rank++)
    result.reaches.push_back(row[rank] && matrix[rank * ranks + own]);
  if (transport != DeviceTransport::kP2p) return result;
  for (size_t a = 0; a < ranks; a++)
    for (size_t b = 0; b < ranks; b++)
      if (!matrix[a * ranks + b])
        return fail(FSCCL_ERR_NOT_AVAILABLE,
                    "FSCCL_DEVICE_TRANSPORT is p2p, and rank {} cannot map the memory of rank {}: "
                    "it is on another host, on a GPU "
                    "without peer access or hidden by CUDA_VISIBLE_DEVICES, or there are no POSIX "
                    "handles. Set it to auto",
                    a, b);
  return result;
}

Result<bool> agree_on_reach(Communicator& comm, bool mine) {
  struct Vote {
    uint8_t transport, reaches;
  };
  const Vote vote{static_cast<uint8_t>(config()->device_transport), mine};
  FSCCL_ASSIGN(const std::vector<Vote> all, all_gather(comm, vote));
  bool reached = true;
  for (size_t rank = 0; rank < all.size(); rank++) {
    reached = reached && all[rank].reaches;
    if (all[rank].transport != vote.transport)
      return fail(FSCCL_ERR_MISMATCH,
                  "FSCCL_DEVICE_TRANSPORT is not the same on rank {} as on rank {}: set it alike "
                  "on all ranks",
                  rank, comm.rank());
  }
  return reached;
}

}  // namespace fsccl
