#include "redistribute/claims.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "fsccl/redistribute.h"

namespace fsccl {
namespace {

// Checks that the claims fit each other and `plan`. All ranks have the same claims, so the result
// is the same on every rank.
Status compare(const std::vector<RedistributionClaim>& claims, const Redistribution& plan) {
  for (size_t rank = 1; rank < claims.size(); rank++) {
    const auto differ = [&](uint64_t RedistributionClaim::* hash) {
      return claims[rank].*hash != claims[0].*hash;
    };
    if (differ(&RedistributionClaim::layouts) || differ(&RedistributionClaim::params) ||
        differ(&RedistributionClaim::buffers))
      return fail(FSCCL_ERR_MISMATCH, "ranks disagree: rank 0 and rank {} gave other {}", rank,
                  differ(&RedistributionClaim::layouts) ? "layouts or numbers of shards"
                  : differ(&RedistributionClaim::params)
                      ? "parameters (shapes, ties or blocks)"
                      : "buffers (parameters or dtypes, or their order)");
  }
  const auto foreign =
      std::find_if(claims.begin(), claims.end(), [&](const RedistributionClaim& claim) {
        return claim.holds < -1 || claim.holds >= plan.from.ranks() || claim.takes < -1 ||
               claim.takes >= plan.to.ranks();
      });
  if (foreign != claims.end())
    return fail(FSCCL_ERR_PROTOCOL, "rank {} sent shard numbers {} and {} that there are not",
                foreign - claims.begin(), foreign->holds, foreign->takes);
  return success();
}

std::string elements_of(const Redistribution& plan, const RedistributionRequest& request,
                        int shard) {
  std::set<size_t> params;
  std::string text;
  for (const Redistribution::Buffer& buffer : plan.buffers) {
    const size_t owner = plan.from.owner(buffer.param);
    const Piece piece = plan.from.piece(shard, owner);
    if (piece.count && params.insert(owner).second && params.size() == 1)
      text = fmt::format("elements {} .. {} of parameter {} ('{}')", piece.begin,
                         piece.begin + piece.count - 1, owner, request.names[owner]);
  }
  return params.size() > 1 ? fmt::format("{}, and of {} more", text, params.size() - 1) : text;
}

// Returns the newest version of which every shard is held, and counts only the holders of that
// version as such in `plan`. If no version is complete, the error says what is missing of the
// version that lacks the fewest shards, or of the newest of these.
Result<uint64_t> choose_version(Redistribution* plan, const RedistributionRequest& request,
                                const std::vector<RedistributionClaim>& claims) {
  std::set<uint64_t, std::greater<>> versions;
  for (const RedistributionClaim& claim : claims)
    if (claim.holds >= 0) versions.insert(claim.version);
  if (versions.empty()) versions.insert(0);
  uint64_t nearest = 0;
  std::vector<int> least;
  for (const uint64_t version : versions) {
    for (size_t rank = 0; rank < claims.size(); rank++)
      plan->members[rank].holds = claims[rank].version == version ? claims[rank].holds : -1;
    std::vector<int> lost = plan->not_held();
    if (lost.empty()) return version;
    if (least.empty() || lost.size() < least.size()) nearest = version, least = std::move(lost);
  }
  std::string others;
  if (versions.size() > 1)
    others =
        fmt::format("; of the {} other versions that ranks have, no less", versions.size() - 1);
  return fail(FSCCL_ERR_INVALID_STATE,
              "no rank holds shard {} of {} of version {}: {}{}{}. Who had it is gone: read the "
              "state from a checkpoint",
              least[0], request.from.ranks, nearest, elements_of(*plan, request, least[0]),
              least.size() > 1 ? fmt::format("; and {} more shards", least.size() - 1) : "",
              others);
}

// Returns the bytes of all buffers, which is the most that a flow can have.
uint64_t all_bytes(const Redistribution& plan) {
  uint64_t all = 0;
  for (const Redistribution::Buffer& buffer : plan.buffers)
    if (__builtin_add_overflow(all, plan.from.numel(buffer.param) * buffer.element_bytes, &all))
      return UINT64_MAX;
  return all;
}

}  // namespace

RedistributionClaim claim_of(const RedistributionRequest& request) {
  RedistributionClaim claim;
  for (const fsccl_sharding_t& side : {request.from, request.to})
    claim.layouts = mix_in_order(mix_in_order(claim.layouts, static_cast<uint64_t>(side.layout)),
                                 static_cast<uint64_t>(side.ranks));
  claim.params = request.params.size();
  for (const ParamShape& param : request.params) {
    claim.params = mix_in_order(claim.params, param.dims.size());
    for (const int64_t dim : param.dims)
      claim.params = mix_in_order(claim.params, static_cast<uint64_t>(dim));
    for (const uint64_t value :
         {static_cast<uint64_t>(param.tied_to), param.block_rows, param.block_columns})
      claim.params = mix_in_order(claim.params, value);
  }
  claim.buffers = request.buffers.size();
  for (const fsccl_redistributed_t& buffer : request.buffers)
    claim.buffers = mix_in_order(mix_in_order(claim.buffers, buffer.param),
                                 static_cast<uint64_t>(buffer.dtype));
  claim.version = request.version;
  claim.holds = request.from.rank;
  claim.takes = request.to.rank;
  return claim;
}

Result<uint64_t> agreed_version(const std::vector<RedistributionClaim>& claims,
                                const std::vector<uint64_t>& hosts,
                                const RedistributionRequest& request, Redistribution* plan) {
  FSCCL_TRY(compare(claims, *plan));
  for (size_t rank = 0; rank < claims.size(); rank++)
    plan->members.push_back({-1, claims[rank].takes, hosts[rank]});
  if (const std::vector<int> idle = plan->not_taken(); !idle.empty())
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "no rank takes shard {} of the {} new ones: what belongs there would be lost",
                idle[0], request.to.ranks);
  return choose_version(plan, request, claims);
}

Result<RedistributionRounds> agreed_rounds(const std::vector<RedistributionTerms>& terms,
                                           const Redistribution& plan) {
  RedistributionRounds rounds{UINT64_MAX, 0};
  const uint64_t most = all_bytes(plan);
  for (size_t rank = 0; rank < terms.size(); rank++) {
    const RedistributionTerms& its = terms[rank];
    if (its.part < kLeastPart || its.longest > most)
      return fail(FSCCL_ERR_PROTOCOL,
                  "rank {} sent terms that cannot be: {} bytes a round, {} of {} in all", rank,
                  its.part, its.longest, most);
    rounds.part = std::min(rounds.part, its.part);
    rounds.longest = std::max(rounds.longest, its.longest);
  }
  return rounds;
}

}  // namespace fsccl
