// When a pool on GPUs is made, its ranks tell each other on which device they are, and how much of
// its memory they may use. From these facts every rank computes, with the same result, how much
// memory slots may take, and which ranks map each other's slots. Two ranks map each other's slots
// if they are on one host, if their devices are the same one or peers in both directions, and if
// handles of memory can travel as descriptors.
#pragma once
#include <string>
#include <vector>

#include "base/config.h"
#include "comm/communicator.h"
#include "cuda/device.h"

namespace fsccl {

struct DeviceRank {
  uint8_t posix_handles, transport, debug, record;
  unsigned char uuid[16];
  uint64_t granularity;
  uint64_t free_bytes;   // free bytes of the device
  uint64_t limit_bytes;  // 0: no limit was given
};

struct Reach {
  std::vector<uint64_t> limits;  // by rank
  uint64_t slots_limit = 0;      // the smallest of them, in whole granules
  uint64_t granularity = 0;      // the coarsest
  std::vector<char> reaches;     // by rank: the two ranks map each other's slots
};

// Collective, blocking. `mine` is an error if this rank cannot take part; then all ranks get an
// error.
Result<Reach> exchange_reach(Communicator& comm, const cuda::Device* device,
                             const Result<DeviceRank>& mine);

// Returns true if `mine` is true on all ranks. Collective, blocking. Returns FSCCL_ERR_MISMATCH if
// FSCCL_DEVICE_TRANSPORT is not the same on all ranks.
Result<bool> agree_on_reach(Communicator& comm, bool mine);

}  // namespace fsccl
