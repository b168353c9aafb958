#include "forecast/prices.h"

#include <algorithm>
#include <array>
#include <functional>

#include "base/round_up.h"
#include "forecast/nccl.h"
#include "fsccl/transport.h"
#include "plan/turn.h"
#include "plan/unit_plans.h"
#include "select/select.h"
#include "select/stages.h"
#include "transports/transports.h"

namespace fsccl::forecast {
namespace {

constexpr int kMostFollowed = 128;

// Returns the time of a plan with so many ranks. Its steps for each peer are alike, so the time is
// linear in the number of ranks.
double at_scale(int ranks, const std::function<double(int)>& ns) {
  if (ranks <= kMostFollowed) return ns(ranks);
  const double half = ns(kMostFollowed / 2), full = ns(kMostFollowed);
  return full + (full - half) / (kMostFollowed / 2) * (ranks - kMostFollowed);
}

// Returns the price of a unit's stage among `ranks` ranks of a host, from the plans of two of them.
Carried follow(const std::function<Plan(int)>& make, int ranks, const PassCosts& passes) {
  const std::array<Plan, 2> plans{make(0), make(ranks > 1 ? 1 : 0)};
  Carried carried;
  carried.how = plans[0].name;
  uint64_t read = 0, written = 0;
  count_bytes(plans[0], &read, &written);
  const Costs costs = passes.of(read, written);
  carried.within_bytes = static_cast<double>(read + written);
  if (ranks == 1) {  // no peer to wait for
    carried.ns = carried.busy_ns = costs.own_copy(read, written);
    return carried;
  }
  const Price found = price(plans, costs, false);
  carried.ns = found.ns;
  carried.busy_ns = found.busy;
  return carried;
}

UnitShape shape_of(const UnitLayout& places, const StepConfig& setup, bool gradients) {
  const Layout& layout = gradients ? *places.reduced.layout : places.layout;
  const size_t count = layout.size();
  UnitShape shape;
  shape.layout = &layout;
  shape.shard_dtype.assign(count, setup.shard);
  shape.slot_dtype.assign(count, gradients ? setup.reduce : setup.wire);
  shape.grad_dtype.assign(count, setup.sharded_grad);
  shape.slot = gradients ? places.reduced.slots : places.parameters;
  return shape;
}

std::vector<std::vector<int>> each_itself(int ranks) {
  std::vector<std::vector<int>> holds;
  for (int rank = 0; rank < ranks; rank++) holds.push_back({rank});
  return holds;
}

// A lane has one rank of each host. The other ranks of the hosts use the network at the same time.
struct Lane {
  int hosts;
  SelectOptions options;
  uint64_t slot_bytes;
  const Machine& machine;
};
Lane lane_of(const Group& group, const Machine& machine) {
  Lane lane{group.hosts, {}, lane_slot_bytes(group, machine), machine};
  lane.options.costs = typical_costs(machine.between);
  // A lane takes the time of the wire, which does not wait for the cores that ranks share.
  lane.options.costs.apply_to(true, 1);
  lane.options.host_shape = {group.hosts, 1};
  lane.options = sharing_link(lane.options, machine.ranks_per_host);
  return lane;
}

Shape lane_shape(const Lane& lane, int hosts, uint64_t count, fsccl_dtype_t dtype) {
  Shape shape;
  shape.ranks = hosts;
  shape.count = count;
  shape.dtype = dtype;
  shape.mirrored = true;
  shape.slot_bytes = lane.slot_bytes;
  return shape;
}

using Make = std::function<Plan(const Shape&)>;
Price price_shape(const Make& make, Shape shape, const Costs& costs) {
  std::array<Plan, 2> plans;
  plans[0] = make(shape);
  shape.rank = 1;
  plans[1] = make(shape);
  return price(plans, costs, false);
}

// Adds the processor time between hosts if it was measured. A rank sends as many bytes as it
// receives, and a sum of two operands reads both and writes one. The processor works while the wire
// carries other bytes, so the lane takes the longer one of the two times.
Carried with_work(Carried carried, const Lane& lane, bool sums) {
  const Machine& machine = lane.machine;
  if (machine.network_per_byte <= 0) return carried;
  const auto bytes = static_cast<uint64_t>(carried.between_bytes);
  const double sum = sums ? machine.reduce.of(2 * bytes, bytes).copy_per_byte * 2 : 0;
  carried.busy_ns =
      machine.ranks_per_core * (machine.network_per_byte + sum) * carried.between_bytes;
  carried.ns = std::max(carried.ns, carried.busy_ns);
  return carried;
}

// `count` is the number of elements of a rank's part.
Carried lane_price(OpCode op, const Lane& lane, uint64_t count, fsccl_dtype_t dtype) {
  Carried carried;
  if (lane.hosts < 2 || count == 0) return carried;
  carried.between_bytes = static_cast<double>(count * dtype_size(dtype)) * (lane.hosts - 1);
  const bool gathers = op == OpCode::all_gather;
  const auto slots = [&](const Shape& shape) {
    const uint64_t room = turn_bytes(shape.slot_bytes, true, shape.ranks);
    return gathers ? move_slots(all_gather_movement(shape), room)
                   : reduce_slots(reduction_of_reduce_scatter(shape), room);
  };
  if (lane.hosts <= kMostFollowed) {
    const Make chosen = [&](const Shape& shape) { return select(op, shape, lane.options).plan; };
    const Price found =
        price_shape(chosen, lane_shape(lane, lane.hosts, count, dtype), lane.options.costs);
    carried.ns = found.ns;
    carried.busy_ns = found.busy;
    carried.how = chosen(lane_shape(lane, lane.hosts, count, dtype)).name;
    return with_work(std::move(carried), lane, !gathers);
  }
  // With fewer ranks, a slot that is shorter in proportion holds pieces of the same size.
  const auto smaller = [&](int hosts) {
    Shape shape = lane_shape(lane, hosts, count, dtype);
    const uint64_t room = turn_bytes(lane.slot_bytes, true, lane.hosts) *
                          static_cast<uint64_t>(hosts) / static_cast<uint64_t>(lane.hosts);
    if (!gathers)
      shape.slot_bytes = std::max<uint64_t>(round_up(room, 64), 64 * static_cast<uint64_t>(hosts));
    return shape;
  };
  carried.ns = at_scale(lane.hosts, [&](int hosts) {
    return price_shape(slots, smaller(hosts), lane.options.costs).ns;
  });
  carried.busy_ns = at_scale(lane.hosts, [&](int hosts) {
    return price_shape(slots, smaller(hosts), lane.options.costs).busy;
  });
  carried.how = gathers ? "all_gather_slots" : "reduce_scatter_slots";
  return with_work(std::move(carried), lane, !gathers);
}

Carried gather_by_plans(const UnitLayout& places, const StepConfig& setup, const Machine& machine,
                        const Group& group) {
  UnitShape shape = shape_of(places, setup, false);
  const auto with = [&shape](Plan (*build)(const UnitShape&)) {
    return [&shape, build](int rank) {
      shape.rank = rank;
      return build(shape);
    };
  };
  if (group.hosts > 1) shape.acts_for = each_itself(group.per_host);
  if (!shares_slots(machine)) {
    Carried carried = follow(with([](const UnitShape& at) { return unshard_private(at, false); }),
                             group.per_host, machine.gather);
    const double bytes = static_cast<double>(places.parameters.bytes);
    carried.within_bytes = bytes * (group.per_host - 1) / group.per_host;
    return carried;
  }
  Carried carried = follow(with(unshard_shared), group.per_host, machine.gather);
  if (group.hosts < 2) return carried;
  const uint64_t count = (places.elements + static_cast<uint64_t>(group.ranks) - 1) /
                         static_cast<uint64_t>(group.ranks);
  const auto coded_count =
      static_cast<uint64_t>(static_cast<double>(count) / setup.codec_ratio + 0.5);
  carried += lane_price(OpCode::all_gather, lane_of(group, machine),
                        std::max<uint64_t>(coded_count, 1), setup.wire);
  if (group.per_host > 1) carried += follow(with(unshard_barrier), group.per_host, machine.gather);
  return carried;
}

// Returns the price of the sums inside a host, where each rank makes the sums of its lane. These
// take one step for each piece of each host. The steps are alike, and all together move the same
// bytes for any number of hosts.
Carried host_sums(const UnitLayout& places, const StepConfig& setup, const Machine& machine,
                  const Group& group) {
  const auto sums = [&](int hosts) {
    const Group few{hosts * group.per_host, hosts, group.per_host};
    std::vector<ParamShape> shapes;
    for (size_t i = 0; i < places.reduced.layout->size(); i++) {
      ParamShape one;
      one.dims = {static_cast<int64_t>(places.reduced.layout->numel(i))};
      shapes.push_back(one);
    }
    const Result<Layout> layout = Layout::make(FSCCL_LAYOUT_FLAT, shapes, few.ranks);
    UnitShape shape = shape_of(places, setup, true);
    shape.layout = &layout.value();
    shape.sums.dtype = FSCCL_FLOAT32;
    shape.sums.offset.assign(shapes.size(), std::vector<uint64_t>(static_cast<size_t>(few.ranks),
                                                                  places.reduced.slots.bytes));
    shape.acts_for.assign(static_cast<size_t>(group.per_host), {});
    for (int rank = 0; rank < few.ranks; rank++)
      shape.acts_for[static_cast<size_t>(rank % group.per_host)].push_back(rank);
    return follow(
        [&shape](int rank) {
          shape.rank = rank;
          return reduce_partials(shape);
        },
        group.per_host, machine.reduce);
  };
  constexpr int kFew = 8;
  if (group.hosts <= 2 * kFew) return sums(group.hosts);
  Carried carried = sums(2 * kFew);
  const double more = (carried.ns - sums(kFew).ns) / kFew * (group.hosts - 2 * kFew);
  carried.ns += std::max(0.0, more);
  carried.busy_ns += std::max(0.0, more);
  return carried;
}

Carried reduce_by_plans(const UnitLayout& places, const StepConfig& setup, const Machine& machine,
                        const Group& group) {
  if (group.hosts < 2) {
    UnitShape shape = shape_of(places, setup, true);
    Carried carried = follow(
        [&shape](int rank) {
          shape.rank = rank;
          return reduce_grads(shape);
        },
        group.per_host, machine.reduce);
    if (machine.gpu)
      carried.within_bytes =
          static_cast<double>(places.reduced.slots.bytes) * (group.per_host - 1) / group.per_host;
    return carried;
  }
  Carried carried;
  if (group.per_host > 1) carried = host_sums(places, setup, machine, group);
  const uint64_t count = (places.reduced.elements + static_cast<uint64_t>(group.ranks) - 1) /
                         static_cast<uint64_t>(group.ranks);
  carried += lane_price(OpCode::reduce_scatter, lane_of(group, machine), count,
                        group.per_host > 1 ? FSCCL_FLOAT32 : setup.reduce);
  const uint64_t bytes = count * dtype_size(setup.sharded_grad);
  const double take = machine.reduce.of(bytes, bytes).copy_per_byte * static_cast<double>(bytes) *
                      machine.ranks_per_core;
  carried.ns += take;
  carried.busy_ns += take;
  return carried;
}

// Returns the price of an operation on `elements`, in all, among so many ranks of a host.
Carried host_price(OpCode op, uint64_t elements, int ranks, fsccl_dtype_t dtype,
                   const Machine& machine) {
  const bool whole = op == OpCode::all_reduce;
  const auto parts = static_cast<uint64_t>(whole ? 1 : ranks);
  SelectOptions options;
  options.costs = machine.within_costs;
  Shape shape;
  shape.ranks = ranks;
  shape.count = (elements + parts - 1) / parts;
  shape.dtype = dtype;
  const Make chosen = [&](const Shape& at) { return select(op, at, options).plan; };
  const Price found = price_shape(chosen, shape, machine.reduce.costs);
  Carried carried;
  carried.ns = found.ns;
  carried.busy_ns = found.busy;
  carried.within_bytes =
      (whole ? 2 : 1) * static_cast<double>(elements * dtype_size(dtype)) * (ranks - 1) / ranks;
  carried.how = chosen(shape).name;
  return carried;
}

Carried replicas_by_plans(uint64_t elements, const StepConfig& setup, const Machine& machine,
                          const Group& group) {
  Carried carried;
  const fsccl_dtype_t type = setup.sharded_grad;
  if (group.ranks < 2 || elements == 0) return carried;
  if (group.hosts < 2) return host_price(OpCode::all_reduce, elements, group.ranks, type, machine);
  // The copies of a host are summed first, each rank of them exchanges its part with other hosts,
  // and the parts are gathered within the host again.
  const auto within = [&](OpCode op) {
    if (group.per_host > 1) carried += host_price(op, elements, group.per_host, type, machine);
  };
  const uint64_t part =
      (elements + static_cast<uint64_t>(group.ranks) - 1) / static_cast<uint64_t>(group.ranks);
  const Lane lane = lane_of(group, machine);
  within(OpCode::reduce_scatter);
  carried += lane_price(OpCode::reduce_scatter, lane, part, type);
  carried += lane_price(OpCode::all_gather, lane, part, type);
  within(OpCode::all_gather);
  return carried;
}

}  // namespace

Carried& Carried::operator+=(const Carried& other) {
  ns += other.ns;
  busy_ns += other.busy_ns;
  within_bytes += other.within_bytes;
  between_bytes += other.between_bytes;
  if (!other.how.empty()) how += how.empty() ? other.how : " + " + other.how;
  return *this;
}

// A lane is a communicator of its own. Its slots hold at least one line for each of its ranks
// (transports/mirror/channel.cpp).
uint64_t lane_slot_bytes(const Group& group, const Machine& machine) {
  const auto hosts = static_cast<size_t>(group.hosts);
  return round_up(std::max<uint64_t>(network_slot_bytes(machine.network, hosts),
                                     hosts * sizeof(fsccl_transport_line_t)),
                  uint64_t{4096});
}

namespace {

// Prices operations on all parameters at once.
UnitPrice price_whole(const UnitLayout& places, const StepConfig& setup, const Machine& machine) {
  const Group group = shard_group(setup, machine), copies = replica_group(setup, machine);
  // With GPUs, the library's plans run within a host, and NCCL carries everything else.
  const bool nccl =
      machine.carrier == Carrier::nccl || (machine.gpu && setup.ranks > machine.ranks_per_host);
  // Without this library, FSDP2 pads each parameter to equal shards, and sums the shards of its
  // copies in the type in which it reduces. The library sends no padding, and sums copies in the
  // type of the gradients' shards.
  const bool stock = machine.carrier == Carrier::nccl;
  const bool padded = stock && setup.layout == FSCCL_LAYOUT_PER_PARAM;
  const auto sent = [&](uint64_t elements, uint64_t of_a_shard) {
    return padded ? of_a_shard * static_cast<uint64_t>(group.ranks) : elements;
  };
  const auto bytes = [](uint64_t elements, fsccl_dtype_t type) {
    return static_cast<double>(elements * dtype_size(type));
  };
  const double wire = bytes(sent(places.elements, places.shard_elements), setup.wire),
               grads = bytes(sent(places.reduced.elements, places.reduced.shard_elements),
                             setup.reduce),
               shard =
                   bytes(places.reduced.shard_elements, stock ? setup.reduce : setup.sharded_grad);
  UnitPrice found;
  if (nccl && (stock || group.hosts > 1)) {
    const double ratio = group.hosts > 1 ? setup.codec_ratio : 1;
    found.gather = nccl_price(NcclOp::all_gather, wire / ratio, group, machine);
    if (ratio > 1 && setup.codec_gb_per_s > 0) found.gather.ns += wire / setup.codec_gb_per_s;
    if (grads > 0) found.reduce = nccl_price(NcclOp::reduce_scatter, grads, group, machine);
  } else {
    found.gather = gather_by_plans(places, setup, machine, group);
    if (group.hosts > 1 && setup.codec_ratio > 1 && setup.codec_gb_per_s > 0) {
      // A rank decodes the part that its lane brings.
      const double ns = wire / group.per_host / setup.codec_gb_per_s;
      found.gather.ns += ns;
      found.gather.busy_ns += ns;
    }
    if (grads > 0) found.reduce = reduce_by_plans(places, setup, machine, group);
  }
  if (grads > 0)
    found.replicas = nccl
                         ? nccl_price(NcclOp::all_reduce, shard, copies, machine)
                         : replicas_by_plans(places.reduced.shard_elements, setup, machine, copies);
  return found;
}

}  // namespace

void UnitPrice::scale(double factor) {
  const auto change = [factor](Carried& one) { one.ns *= factor, one.busy_ns *= factor; };
  change(gather), change(reduce), change(replicas);
  for (Carried& one : reduce_of) change(one);
}

Carried UnitPrice::reduction(size_t param) const {
  if (param < reduce_of.size()) return reduce_of[param];
  Carried whole = reduce;
  whole += replicas;
  return whole;
}

UnitPrice price_unit(const UnitLayout& places, const StepConfig& setup, const Machine& machine) {
  UnitPrice found = price_whole(places, setup, machine);
  Carried gathers, reductions;
  for (const UnitLayout& param : places.params) {
    const UnitPrice one = price_whole(param, setup, machine);
    gathers += one.gather;
    reductions += one.reduce;
    found.reduce_of.push_back(one.reduce);
  }
  if (!places.params.empty()) {
    reductions.how = found.reduce.how, gathers.how = found.gather.how;
    found.reduce = reductions;
    if (machine.gpu) found.gather = gathers;
  }
  found.scale(setup.carry_factor);
  return found;
}

}  // namespace fsccl::forecast
