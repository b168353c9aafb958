#include "select/stages.h"

#include <fmt/format.h>

#include <algorithm>

#include "plan/turn.h"

namespace fsccl {
namespace {

constexpr uint64_t kTypicalSlotBytes = 128u << 10;
constexpr double kStageNs = 1000;  // time of an operation that begins when another one is over

std::vector<Stage> stages_of(OpCode op, const Shape& shape, const GroupShape& host,
                             const GroupShape& lane, bool widens) {
  const auto ranks = static_cast<uint64_t>(shape.ranks);
  const uint64_t count = shape.counts.empty() ? shape.count : (shape.count + ranks - 1) / ranks;
  const uint64_t per_host = static_cast<uint64_t>(host.ranks),
                 hosts = static_cast<uint64_t>(lane.ranks),
                 part = std::max((count + per_host - 1) / per_host,
                                 std::min(count, kLeastLaneBytes / dtype_size(shape.dtype)));
  std::vector<Stage> stages;
  op = even_form(op);
  switch (op) {
    case OpCode::all_gather:
      stages = {{true, op, count}, {false, op, count * hosts}};
      break;
    case OpCode::reduce_scatter:
      stages = {{false, op, count * hosts}, {true, op, count, widens}};
      break;
    case OpCode::all_reduce:
      stages = {{false, OpCode::reduce_scatter, part},
                {true, op, part},
                {false, OpCode::all_gather, part}};
      if (widens) {
        const uint64_t share = (part + hosts - 1) / hosts;
        stages[1] = {true, OpCode::reduce_scatter, share, true};
        stages.insert(stages.begin() + 2, {true, OpCode::all_gather, share});
      }
      break;
    case OpCode::barrier:
      stages = {{false, op, 0}, {true, op, 0}};
      break;
    case OpCode::broadcast:
      stages = {{false, op, count}, {true, op, part}, {false, OpCode::all_gather, part}};
      break;
    default:
      break;
  }
  const SelectOptions shared = sharing_link(lane.select, host.ranks);
  for (Stage& stage : stages) {
    const GroupShape& group = stage.between_hosts ? lane : host;
    std::vector<Candidate> considered;
    const Selection selection =
        select(stage.op, group.shape(stage.count, stage.widened ? FSCCL_FLOAT32 : shape.dtype),
               stage.between_hosts ? shared : group.select, &considered);
    stage.plan = selection.plan.name;
    stage.ns = selection.ns;
  }
  return stages;
}

// Returns costs of the network that depend on no measurement of this start.
Costs lasting(const SelectOptions& options) {
  const Costs& costs = options.costs;
  Costs made = typical_costs(topo::LinkClass::network, options.sockets);
  if (costs.origin != CostsOrigin::calibration) {
    made.exchange = costs.exchange;
    made.message = costs.message;
    made.slot_cached = costs.slot_cached;
    made.slot_streaming = costs.slot_streaming;
    made.copy_per_byte = costs.copy_per_byte;
    made.origin = costs.origin;
  }
  return made;
}

}  // namespace

SelectOptions sharing_link(SelectOptions options, int ranks) {
  const auto share = [&](Cost& cost) {
    const double least = cost.at(0);
    for (double& ns : cost.ns) ns = least + (ns - least) * ranks;
  };
  share(options.costs.slot_cached);
  share(options.costs.slot_streaming);
  return options;
}

Shape GroupShape::shape(uint64_t count, fsccl_dtype_t dtype) const {
  Shape made;
  made.ranks = ranks;
  made.count = count;
  made.dtype = dtype;
  made.slot_bytes = std::max(slot_bytes, least_slot_bytes(ranks));
  made.mirrored = mirrored;
  return made;
}

HostsChoice choose_by_hosts(OpCode op, const Shape& shape, GroupShape whole, HierarchyMode mode,
                            bool widens) {
  whole.select.costs = lasting(whole.select);
  whole.slot_bytes = kTypicalSlotBytes;
  const int hosts = whole.select.host_shape.hosts, per_host = whole.per_host();
  GroupShape lane = whole, host{per_host, kTypicalSlotBytes, false, whole.select};
  lane.ranks = hosts;
  lane.select.host_shape = {hosts, 1};
  host.select.costs = typical_costs(topo::LinkClass::host);
  host.select.host_shape = {1, per_host};
  HostsChoice choice;
  choice.stages = stages_of(op, shape, host, lane, widens);
  if (choice.stages.empty()) return choice;
  for (const Stage& stage : choice.stages) choice.ns += stage.ns + kStageNs;
  const Rule* const rule = whole.select.rule(rule_of_hosts, op, call_bytes(op, shape));
  if (rule) {
    choice.by_hosts = rule->algorithm == Algorithm::by_hosts;
    choice.asked = true;
    choice.why = rule->origin + " says so";
  } else if (mode == HierarchyMode::kOn) {
    choice.by_hosts = choice.asked = true;
    choice.why = "FSCCL_HIERARCHY says so";
  } else {
    std::vector<Candidate> considered;
    const double flat_ns =
        select(op, shape, sharing_link(whole.select, host.ranks), &considered).ns;
    choice.by_hosts = choice.ns < flat_ns;
    choice.why = fmt::format(
        "{:.1f} us by hosts and {:.1f} flat are predicted from the {}, for a link that a host's "
        "ranks share",
        choice.ns / 1000, flat_ns / 1000,
        whole.select.costs.origin == CostsOrigin::table ? "table of links" : "tuning file");
  }
  return choice;
}

}  // namespace fsccl
