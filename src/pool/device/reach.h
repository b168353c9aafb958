// The exchange of the ranks of a pool on GPUs when the pool is made: on which device each rank is,
// and how much of its memory it may have. From that every rank computes alike how much slots may
// take, and which ranks map each other's slots: ranks of one host whose devices are the same one or
// peers, with handles that travel as descriptors, in both directions.
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
  uint64_t limit_bytes;  // 0: none was given
};

struct Reach {
  std::vector<uint64_t> limits;  // by rank
  uint64_t slots_limit = 0;      // the smallest of them, in whole granules
  uint64_t granularity = 0;      // the coarsest
  std::vector<char> reaches;     // by rank: it maps this rank's slots, and this rank its
};

// Collective, blocking. `mine` is an error when this rank cannot take part; then all ranks have
// one.
Result<Reach> exchange_reach(Communicator& comm, const cuda::Device* device,
                             const Result<DeviceRank>& mine);

// Returns true if `mine` is true on all ranks; collective, blocking. Returns FSCCL_ERR_MISMATCH
// where FSCCL_DEVICE_TRANSPORT differs.
Result<bool> agree_on_reach(Communicator& comm, bool mine);

}  // namespace fsccl
