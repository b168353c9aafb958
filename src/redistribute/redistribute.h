// State of training is dealt out anew, in memory: from the shards that the ranks of a communicator
// hold to those that they are to hold (redistribution.h works out all flows of bytes). The ranks
// first say what they have and want, and all come to the same answer whether that is enough; then
// bytes go in rounds, through memory of a fixed size.
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

// Collective, blocking. `request`: or why this rank cannot take part, which the others are told.
// The version that was dealt out.
Result<uint64_t> redistribute(Communicator& comm, Result<RedistributionRequest> request);

}  // namespace fsccl
