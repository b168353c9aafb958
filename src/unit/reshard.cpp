#include "unit/reshard.h"

#include <algorithm>
#include <set>

#include "base/hash.h"
#include "layout/resharding.h"
#include "unit/reshard_exchange.h"
#include "unit/unit_definition.h"

namespace fsccl {
namespace {

constexpr int kMostShards = 1 << 20;

// What each rank tells all others.
struct Claim {
  uint64_t layouts = 0, params = 0, buffers = 0;  // hashes
  uint64_t version = 0;
  int32_t holds = -1, takes = -1;
  uint32_t wrong = 0, reserved = 0;  // wrong: it cannot take part
};

// Blocks matter to the ragged layout alone. Where they do not change the order of elements, other layouts can do without them.
Result<Layout> layout_of(const fsccl_sharding_t& sharding, const char* which, const ReshardRequest& request, bool both_ragged) {
  if (sharding.ranks < 1 || sharding.ranks > kMostShards || sharding.rank < FSCCL_NO_SHARD || sharding.rank >= sharding.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{}: shard {} of {}: there are 1 .. {} shards, and this rank's is one of them, or FSCCL_NO_SHARD", which,
                sharding.rank, sharding.ranks, kMostShards);
  std::vector<ParamShape> params = request.params;
  for (size_t i = 0; i < params.size() && !both_ragged; i++) {
    ParamShape& param = params[i];
    if (param.block_rows > 1 && param.dims.size() > 1 && param.block_columns < static_cast<uint64_t>(param.dims.back()))
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "parameter {} ('{}') is stored in blocks of {} x {} elements: only from FSCCL_LAYOUT_RAGGED to it can it be "
                  "dealt out anew",
                  i, request.names[i], param.block_rows, param.block_columns);
    if (sharding.layout != FSCCL_LAYOUT_RAGGED) param.block_rows = param.block_columns = 0;
  }
  return Layout::make(sharding.layout, std::move(params), sharding.ranks);
}

Status check_buffer(const ReshardRequest& request, const Resharding& plan, size_t index) {
  const fsccl_resharded_t& buffer = request.buffers[index];
  if (buffer.param >= request.params.size() || !dtype_valid(buffer.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "buffer {}: parameter {} of {}, dtype {}: there is no such parameter or dtype", index,
                buffer.param, request.params.size(), static_cast<int>(buffer.dtype));
  const auto bytes = [&](const Layout& layout, int shard) {
    return shard < 0 ? 0 : layout.piece(shard, buffer.param).count * dtype_size(buffer.dtype);
  };
  const uint64_t old = bytes(plan.from, request.from.rank), made = bytes(plan.to, request.to.rank);
  if ((old && !buffer.from) || (made && !buffer.to))
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "buffer {}: `{}` is NULL, though this rank's piece of parameter {} ('{}') has {} bytes",
                index, old && !buffer.from ? "from" : "to", buffer.param, request.names[buffer.param],
                old && !buffer.from ? old : made);
  const auto from = reinterpret_cast<uintptr_t>(buffer.from), to = reinterpret_cast<uintptr_t>(buffer.to);
  if (old && made && from < to + made && to < from + old)
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "buffer {}: `from` and `to` overlap: the new piece has memory of its own", index);
  return success();
}

// What follows from this rank's own arguments. Nobody else's are known yet.
Result<Resharding> plan_of(const ReshardRequest& request) {
  const bool both_ragged = request.from.layout == FSCCL_LAYOUT_RAGGED && request.to.layout == FSCCL_LAYOUT_RAGGED;
  FSCCL_ASSIGN(Layout from, layout_of(request.from, "from", request, both_ragged));
  FSCCL_ASSIGN(Layout to, layout_of(request.to, "to", request, both_ragged));
  Resharding plan{std::move(from), std::move(to), {}, {}};
  for (size_t k = 0; k < request.buffers.size(); k++) {
    FSCCL_TRY(check_buffer(request, plan, k));
    plan.buffers.push_back({request.buffers[k].param, dtype_size(request.buffers[k].dtype)});
  }
  return plan;
}

Claim claim_of(const ReshardRequest& request) {
  Claim claim;
  for (const fsccl_sharding_t& side : {request.from, request.to})
    claim.layouts =
        mix_in_order(mix_in_order(claim.layouts, static_cast<uint64_t>(side.layout)), static_cast<uint64_t>(side.ranks));
  claim.params = request.params.size();
  for (const ParamShape& param : request.params) {
    claim.params = mix_in_order(claim.params, param.dims.size());
    for (const int64_t dim : param.dims) claim.params = mix_in_order(claim.params, static_cast<uint64_t>(dim));
    for (const uint64_t value : {static_cast<uint64_t>(param.tied_to), param.block_rows, param.block_columns})
      claim.params = mix_in_order(claim.params, value);
  }
  claim.buffers = request.buffers.size();
  for (const fsccl_resharded_t& buffer : request.buffers)
    claim.buffers = mix_in_order(mix_in_order(claim.buffers, buffer.param), static_cast<uint64_t>(buffer.dtype));
  claim.version = request.version;
  claim.holds = request.from.rank;
  claim.takes = request.to.rank;
  return claim;
}

// The same on every rank that can take part.
Status compare(const std::vector<Claim>& claims, const Resharding& plan) {
  const auto wrong = std::find_if(claims.begin(), claims.end(), [](const Claim& claim) { return claim.wrong != 0; });
  if (wrong != claims.end())
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "rank {} cannot take part; its own error says why", wrong - claims.begin());
  for (size_t rank = 1; rank < claims.size(); rank++) {
    const auto differ = [&](uint64_t Claim::*hash) { return claims[rank].*hash != claims[0].*hash; };
    if (differ(&Claim::layouts) || differ(&Claim::params) || differ(&Claim::buffers))
      return fail(FSCCL_ERR_MISMATCH, "ranks disagree: rank 0 and rank {} gave other {}", rank,
                  differ(&Claim::layouts)  ? "layouts or numbers of shards"
                  : differ(&Claim::params) ? "parameters (shapes, ties or blocks)"
                                           : "buffers (parameters or dtypes, or their order)");
  }
  const auto foreign = std::find_if(claims.begin(), claims.end(), [&](const Claim& claim) {
    return claim.holds < -1 || claim.holds >= plan.from.ranks() || claim.takes < -1 || claim.takes >= plan.to.ranks();
  });
  if (foreign != claims.end())
    return fail(FSCCL_ERR_PROTOCOL, "rank {} sent shard numbers {} and {} that there are not", foreign - claims.begin(),
                foreign->holds, foreign->takes);
  return success();
}

std::string elements_of(const Resharding& plan, const ReshardRequest& request, int shard) {
  std::set<size_t> params;
  std::string text;
  for (const Resharding::Buffer& buffer : plan.buffers) {
    const size_t owner = plan.from.owner(buffer.param);
    const Piece piece = plan.from.piece(shard, owner);
    if (piece.count && params.insert(owner).second && params.size() == 1)
      text = fmt::format("elements {} .. {} of parameter {} ('{}')", piece.begin, piece.begin + piece.count - 1, owner,
                         request.names[owner]);
  }
  return params.size() > 1 ? fmt::format("{}, and of {} more", text, params.size() - 1) : text;
}

// The newest version of which all is there; shards of others are no longer held. Else what is missing: of the version that lacks
// least, the newest of these.
Result<uint64_t> choose_version(Resharding* plan, const ReshardRequest& request, const std::vector<Claim>& claims) {
  std::set<uint64_t, std::greater<>> versions;
  for (const Claim& claim : claims)
    if (claim.holds >= 0) versions.insert(claim.version);
  if (versions.empty()) versions.insert(0);
  uint64_t nearest = 0;
  std::vector<int> least;
  for (const uint64_t version : versions) {
    for (size_t rank = 0; rank < claims.size(); rank++)
      plan->parties[rank].holds = claims[rank].version == version ? claims[rank].holds : -1;
    std::vector<int> lost = plan->not_held();
    if (lost.empty()) return version;
    if (least.empty() || lost.size() < least.size()) nearest = version, least = std::move(lost);
  }
  std::string others;
  if (versions.size() > 1) others = fmt::format("; of the {} other versions that ranks have, no less", versions.size() - 1);
  return fail(FSCCL_ERR_INVALID_STATE,
              "no rank holds shard {} of {} of version {}: {}{}{}. Who had it is gone: read the state from a checkpoint", least[0],
              request.from.ranks, nearest, elements_of(*plan, request, least[0]),
              least.size() > 1 ? fmt::format("; and {} more shards", least.size() - 1) : "", others);
}

}  // namespace

Result<uint64_t> reshard(Communicator& comm, Result<ReshardRequest> request) {
  Result<Resharding> planned = request.ok() ? plan_of(request.value()) : Result<Resharding>(request.take_status());
  Claim mine;
  if (planned.ok()) mine = claim_of(request.value());
  mine.wrong = !planned.ok();
  std::vector<Claim> claims(static_cast<size_t>(comm.size()));
  FSCCL_TRY(gather(comm, &mine, claims.data(), sizeof mine));
  if (!planned.ok()) return planned.take_status();
  Resharding& plan = planned.value();
  FSCCL_TRY(compare(claims, plan));
  for (int rank = 0; rank < comm.size(); rank++)
    plan.parties.push_back({-1, claims[static_cast<size_t>(rank)].takes, comm.context().job().member(comm.job_rank(rank)).host});
  if (const std::vector<int> idle = plan.not_taken(); !idle.empty())
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "no rank takes shard {} of the {} new ones: what belongs there would be lost", idle[0],
                request.value().to.ranks);
  FSCCL_ASSIGN(const uint64_t version, choose_version(&plan, request.value(), claims));
  FSCCL_TRY(exchange(comm, plan, request.value().buffers, request.value().limit_bytes));
  return version;
}

}  // namespace fsccl
