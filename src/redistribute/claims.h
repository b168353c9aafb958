// The claims and terms that ranks exchange before state is dealt out anew, and what all ranks
// conclude from them alike. Claims and terms come from other ranks, so they are checked: no value
// can make this rank access memory beyond its own or run rounds without end.
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
// Returns the version of the state that is dealt out. `claims` and `hosts` have one entry for each
// rank. Fills in the members of `plan`.
Result<uint64_t> agreed_version(const std::vector<RedistributionClaim>& claims,
                                const std::vector<uint64_t>& hosts,
                                const RedistributionRequest& request, Redistribution* plan);

// The proposal of one rank for the rounds in which bytes are moved.
struct RedistributionTerms {
  // `part`: the most bytes of a flow that this rank can move in a round. `longest`: the bytes of
  // the longest flow that this rank sends.
  uint64_t part = 0, longest = 0;
};
inline constexpr uint64_t kLeastPart = 64;
// In each round at most `part` bytes go from one rank to another, until `longest` bytes have gone.
struct RedistributionRounds {
  uint64_t part = kLeastPart, longest = 0;
};
// Returns the rounds that follow from the terms of all ranks: the smallest part and the longest
// flow. Fails if a rank's terms are impossible under `plan`.
Result<RedistributionRounds> agreed_rounds(const std::vector<RedistributionTerms>& terms,
                                           const Redistribution& plan);

}  // namespace fsccl
