// Deals out the state of training anew, in memory: from the shards that the ranks of a communicator
// hold to the shards that they are to hold (redistribution.h works out all flows of bytes). The
// ranks first exchange what they hold and want, and all conclude alike whether every shard is
// there. Then the bytes go in rounds, through memory of a limited size.
#pragma once
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "fsccl/redistribute.h"
#include "layout/layout.h"

namespace fsccl {

struct RedistributionRequest {
  fsccl_sharding_t from{}, to{};
  std::vector<ParamShape> params;
  std::vector<std::string> names;
  std::vector<fsccl_redistributed_t> buffers;
  uint64_t version = 0;
  uint64_t limit_bytes = 0;
};

// Returns the version that was dealt out. Collective and blocking. If `request` is an error, this
// rank cannot take part; the call then fails on all ranks, and the others are told why.
Result<uint64_t> redistribute(Communicator& comm, Result<RedistributionRequest> request);

}  // namespace fsccl
