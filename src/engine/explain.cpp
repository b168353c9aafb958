// Why a collective is carried out as it is, as JSON.
#include <fmt/ranges.h>

#include "engine/hierarchy.h"

namespace fsccl {
namespace {

constexpr OpCode kExplained[] = {OpCode::all_gather, OpCode::reduce_scatter, OpCode::all_reduce, OpCode::broadcast,
                                 OpCode::reduce,     OpCode::gather,         OpCode::scatter,    OpCode::all_to_all,
                                 OpCode::send,       OpCode::barrier};

std::string array_of(const Cost& cost) { return fmt::format("[{}]", fmt::join(cost.ns, ",")); }

}  // namespace

Result<std::string> Collectives::explain(std::string_view operation, uint64_t bytes) const {
  const auto* found =
      std::find_if(std::begin(kExplained), std::end(kExplained), [&](OpCode op) { return op_name(op) == operation; });
  if (found == std::end(kExplained)) {
    std::vector<const char*> names;
    for (const OpCode op : kExplained) names.push_back(op_name(op));
    return fail(FSCCL_ERR_INVALID_ARGUMENT, "operation \"{}\" is not one of {}", operation, fmt::join(names, ", "));
  }
  if (bytes >> 58) return fail(FSCCL_ERR_INVALID_ARGUMENT, "{} bytes are beyond the address space", bytes);
  const bool whole =
      *found == OpCode::all_reduce || *found == OpCode::broadcast || *found == OpCode::reduce || *found == OpCode::send;
  Shape shape;
  shape.ranks = *found == OpCode::send ? 2 : engine_.ranks();
  shape.rank = std::min(engine_.rank(), shape.ranks - 1);
  shape.count = whole ? bytes : bytes / static_cast<uint64_t>(shape.ranks);
  shape.slot_bytes = engine_.slot_bytes();
  shape.mirrored = engine_.mirrored();
  std::vector<Candidate> candidates;
  select(*found, shape, options_.select, &candidates);

  CollectiveCall call;
  call.op = *found;
  call.count = shape.count;
  const bool by_hosts = hierarchy_ && hierarchy_->takes(call);

  const Costs& costs = options_.select.costs;
  std::string text =
      fmt::format(R"({{"operation":"{}","bytes":{},"ranks":{},"measured":{{"exchange_ns":{},"sizes":[{}],"slots_ns":{},)"
                  R"("slots_past_caches_ns":{},)"
                  R"("read_ns":{},"copy_ns_per_kib":{:.1f}}},"candidates":[)",
                  operation, bytes, shape.ranks, costs.exchange, fmt::join(Cost::kSizes, ","), array_of(costs.slot_cached),
                  array_of(costs.slot_streaming), costs.can_read ? array_of(costs.read) : "null", costs.copy_per_byte * 1024);
  for (const Candidate& candidate : candidates)
    text += fmt::format(R"({}{{"plan":"{}","chunk":{},"memory":"{}","predicted_us":{:.3f},"chosen":{}}})",
                        &candidate == candidates.data() ? "" : ",", candidate.plan, candidate.chunk, candidate.memory,
                        candidate.ns / 1000, candidate.chosen && !by_hosts);
  if (by_hosts) text += R"(,{"plan":"by_hosts","chunk":0,"memory":"any","predicted_us":null,"chosen":true})";
  return text + "]}";
}

}  // namespace fsccl
