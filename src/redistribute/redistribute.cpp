#include "redistribute/redistribute.h"

#include "comm/consensus.h"
#include "fsccl/redistribute.h"
#include "redistribute/claims.h"
#include "redistribute/redistribution.h"
#include "redistribute/rounds.h"

namespace fsccl {
namespace {

constexpr int kMostShards = 1 << 20;

// Makes one of the two layouts. Only the ragged layout keeps blocks. Another layout ignores blocks
// of whole rows, which leave the order of elements as it is; blocks of fewer columns than a row
// change that order and are refused unless both layouts are ragged.
Result<Layout> layout_of(const fsccl_sharding_t& sharding, const char* which,
                         const RedistributionRequest& request, bool both_ragged) {
  if (sharding.ranks < 1 || sharding.ranks > kMostShards || sharding.rank < FSCCL_NO_SHARD ||
      sharding.rank >= sharding.ranks)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "{}: shard {} of {}: there are 1 .. {} shards, and this rank's is one of them, or "
                "FSCCL_NO_SHARD",
                which, sharding.rank, sharding.ranks, kMostShards);
  std::vector<ParamShape> params = request.params;
  for (size_t i = 0; i < params.size() && !both_ragged; i++) {
    ParamShape& param = params[i];
    if (param.block_rows > 1 && param.dims.size() > 1 &&
        param.block_columns < static_cast<uint64_t>(param.dims.back()))
      return fail(FSCCL_ERR_NOT_AVAILABLE,
                  "parameter {} ('{}') is stored in blocks of {} x {} elements: only from "
                  "FSCCL_LAYOUT_RAGGED to it can it be "
                  "dealt out anew",
                  i, request.names[i], param.block_rows, param.block_columns);
    if (sharding.layout != FSCCL_LAYOUT_RAGGED) param.block_rows = param.block_columns = 0;
  }
  return Layout::make(sharding.layout, std::move(params), sharding.ranks);
}

Status check_buffer(const RedistributionRequest& request, const Redistribution& plan,
                    size_t index) {
  const fsccl_redistributed_t& buffer = request.buffers[index];
  if (buffer.param >= request.params.size() || !dtype_valid(buffer.dtype))
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "buffer {}: parameter {} of {}, dtype {}: there is no such parameter or dtype",
                index, buffer.param, request.params.size(), static_cast<int>(buffer.dtype));
  const auto bytes = [&](const Layout& layout, int shard) {
    return shard < 0 ? 0 : layout.piece(shard, buffer.param).count * dtype_size(buffer.dtype);
  };
  const uint64_t old = bytes(plan.from, request.from.rank), made = bytes(plan.to, request.to.rank);
  if ((old && !buffer.from) || (made && !buffer.to))
    return fail(
        FSCCL_ERR_INVALID_ARGUMENT,
        "buffer {}: `{}` is NULL, though this rank's piece of parameter {} ('{}') has {} bytes",
        index, old && !buffer.from ? "from" : "to", buffer.param, request.names[buffer.param],
        old && !buffer.from ? old : made);
  const auto from = reinterpret_cast<uintptr_t>(buffer.from),
             to = reinterpret_cast<uintptr_t>(buffer.to);
  if (old && made && from < to + made && to < from + old)
    return fail(FSCCL_ERR_INVALID_ARGUMENT,
                "buffer {}: `from` and `to` overlap: the new piece has memory of its own", index);
  return success();
}

// Makes the plan that follows from this rank's own arguments. The arguments of others are not
// known yet.
Result<Redistribution> plan_of(const RedistributionRequest& request) {
  const bool both_ragged =
      request.from.layout == FSCCL_LAYOUT_RAGGED && request.to.layout == FSCCL_LAYOUT_RAGGED;
  FSCCL_ASSIGN(Layout from, layout_of(request.from, "from", request, both_ragged));
  FSCCL_ASSIGN(Layout to, layout_of(request.to, "to", request, both_ragged));
  Redistribution plan{std::move(from), std::move(to), {}, {}};
  for (size_t k = 0; k < request.buffers.size(); k++) {
    FSCCL_TRY(check_buffer(request, plan, k));
    plan.buffers.push_back({request.buffers[k].param, dtype_size(request.buffers[k].dtype)});
  }
  return plan;
}

}  // namespace

Result<uint64_t> redistribute(Communicator& comm, Result<RedistributionRequest> request) {
  Result<Redistribution> planned =
      request.ok() ? plan_of(request.value()) : Result<Redistribution>(request.take_status());
  FSCCL_TRY(all_ok(comm, planned.status().clone(), "take part"));
  FSCCL_ASSIGN(const std::vector<RedistributionClaim> claims,
               all_gather(comm, claim_of(request.value())));
  std::vector<uint64_t> hosts;
  for (int rank = 0; rank < comm.size(); rank++)
    hosts.push_back(comm.context().job().member(comm.job_rank(rank)).host);
  Redistribution& plan = planned.value();
  FSCCL_ASSIGN(const uint64_t version, agreed_version(claims, hosts, request.value(), &plan));
  FSCCL_TRY(move_in_rounds(comm, plan, request.value().buffers, request.value().limit_bytes));
  return version;
}

}  // namespace fsccl
