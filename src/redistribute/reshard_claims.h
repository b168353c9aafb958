// What the ranks tell each other before state is dealt out anew, and what all of them conclude from
// it, alike. Claims and terms come from other ranks: nothing in them is believed that would lead
// beyond this rank's memory, or to rounds without end.
#pragma once
#include <vector>

#include "redistribute/reshard.h"
#include "redistribute/resharding.h"

namespace fsccl {

struct ReshardClaim {
  uint64_t layouts = 0, params = 0, buffers = 0;  // hashes
  uint64_t version = 0;
  int32_t holds = -1, takes = -1;
};
ReshardClaim claim_of(const ReshardRequest& request);
// The version that is dealt out, by the claims of all ranks and the hosts that they are on: `plan`
// then has its parties.
Result<uint64_t> settle(const std::vector<ReshardClaim>& claims, const std::vector<uint64_t>& hosts,
                        const ReshardRequest& request, Resharding* plan);

// How bytes go: in each round at most `part` of them from one rank to another, until `longest` have
// gone.
struct ReshardTerms {
  uint64_t part = 0, longest = 0;  // what this rank can, and its longest flow
};
inline constexpr uint64_t kLeastReshardPart = 64;
struct ReshardRounds {
  uint64_t part = kLeastReshardPart, longest = 0;
};
// By the terms of all ranks.
Result<ReshardRounds> settle(const std::vector<ReshardTerms>& terms, const Resharding& plan);

}  // namespace fsccl
