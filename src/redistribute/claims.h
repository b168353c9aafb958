// The claims that ranks exchange before state is dealt out anew, and the terms that all of them
// conclude from these, alike. Claims and terms come from other ranks: nothing in them is believed
// that would lead beyond this rank's memory, or to rounds without end.
#pragma once
#include <vector>

#include "redistribute/redistribute.h"
#include "redistribute/redistribution.h"

namespace fsccl {

struct RedistributionClaim {
  uint64_t layouts = 0, params = 0, buffers = 0;  // hashes
  uint64_t version = 0;
  int32_t holds = -1, takes = -1;
};
RedistributionClaim claim_of(const RedistributionRequest& request);
// The version that is dealt out, by the claims of all ranks and the hosts that they are on: `plan`
// then has its members.
Result<uint64_t> agreed_version(const std::vector<RedistributionClaim>& claims,
                                const std::vector<uint64_t>& hosts,
                                const RedistributionRequest& request, Redistribution* plan);

// How bytes go: in each round at most `part` of them from one rank to another, until `longest` have
// gone.
struct RedistributionTerms {
  // bytes of a flow in each round, and in all: a rank proposes what it can, and its longest flow
  uint64_t part = 0, longest = 0;
};
inline constexpr uint64_t kLeastPart = 64;
struct RedistributionRounds {
  uint64_t part = kLeastPart, longest = 0;
};
// By the terms of all ranks.
Result<RedistributionRounds> agreed_rounds(const std::vector<RedistributionTerms>& terms,
                                           const Redistribution& plan);

}  // namespace fsccl
