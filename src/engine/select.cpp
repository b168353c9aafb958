#include "engine/select.h"

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

namespace fsccl {
namespace {

using Make = std::function<Plan(const Shape&)>;
constexpr int kManyRanks = 32;

// The ways of a collective. `direct` touches peers' buffers; `through_slots` need none of them.
struct Ways {
  Make direct;
  std::vector<Make> through_slots;
  bool readable = true;  // direct only reads peers' memory
  uint64_t payload = 0;  // bytes, as FSCCL_EAGER_BYTES counts them
};

// Pieces of what a slot holds: smaller ones overlap sooner, larger ones need fewer exchanges. Of many ranks a slot holds small
// pieces anyway, and their plans are long.
std::vector<uint64_t> chunks_of(const Shape& shape) {
  std::vector<uint64_t> sizes{shape.slot_bytes};
  if (shape.ranks > kManyRanks) return sizes;
  const uint64_t least = std::max<uint64_t>(4096, 64 * static_cast<uint64_t>(shape.ranks));
  for (const uint64_t part : {4, 16})
    if (shape.slot_bytes / part >= least && shape.whole_bytes() > shape.slot_bytes / part) sizes.push_back(shape.slot_bytes / part);
  return sizes;
}

void add_slots(Ways& ways, const Shape& shape, const std::function<Plan(const Shape&, uint64_t)>& make) {
  for (const uint64_t bytes : chunks_of(shape))
    ways.through_slots.push_back([make, bytes](const Shape& at) { return make(at, bytes); });
}

Ways moving(const Shape& shape, Movement (*movement)(const Shape&)) {
  Ways ways;
  ways.direct = [=](const Shape& at) { return move_direct(movement(at)); };
  ways.payload = shape.largest_part_bytes();
  add_slots(ways, shape, [=](const Shape& at, uint64_t bytes) { return move_slots(movement(at), bytes); });
  return ways;
}

Ways folding(const Shape& shape, Folding (*folding)(const Shape&), Folding (*whole)(const Shape&)) {
  Ways ways;
  ways.direct = [=](const Shape& at) { return fold_direct(folding(at)); };
  ways.payload = folding(shape).input_bytes;
  ways.readable = folding(shape).deliver == Deliver::self;
  add_slots(ways, shape, [=](const Shape& at, uint64_t bytes) { return fold_slots(folding(at), bytes); });
  if (whole) add_slots(ways, shape, [=](const Shape& at, uint64_t bytes) { return fold_slots(whole(at), bytes); });
  return ways;
}

Ways ways_of(OpCode op, const Shape& shape) {
  switch (op) {
    case OpCode::all_gather:
    case OpCode::all_gather_v:
      return moving(shape, all_gather_movement);
    case OpCode::gather:
      return moving(shape, gather_movement);
    case OpCode::scatter:
      return moving(shape, scatter_movement);
    case OpCode::all_to_all:
      return moving(shape, all_to_all_movement);
    case OpCode::send:  // on a communicator of two: rank 0 to rank 1
    case OpCode::broadcast: {
      Ways ways = moving(shape, broadcast_movement);
      ways.direct = broadcast_balanced;
      ways.readable = false;
      return ways;
    }
    case OpCode::reduce_scatter:
    case OpCode::reduce_scatter_v:
      return folding(shape, reduce_scatter_folding, nullptr);
    case OpCode::all_reduce:
      return folding(shape, all_reduce_folding, small_all_reduce_folding);
    case OpCode::reduce:
      return folding(shape, reduce_folding, small_reduce_folding);
    default:
      return {};
  }
}

// What is so small that it rides in the signals is never better off elsewhere.
std::optional<Plan> inline_plan(OpCode op, const Shape& shape) {
  const bool tiny = shape.largest_part_bytes() <= kInlineBytes;
  if (op == OpCode::barrier) return barrier(shape.rank, shape.ranks);
  if ((op == OpCode::all_gather || op == OpCode::all_gather_v) && tiny) return all_gather_inline(shape);
  if ((op == OpCode::broadcast || op == OpCode::send) && tiny) return broadcast_inline(shape);
  if (op == OpCode::all_reduce && tiny) return all_reduce_inline(shape);
  if ((op == OpCode::reduce_scatter || op == OpCode::reduce_scatter_v) && shape.whole_bytes() <= kInlineBytes)
    return reduce_scatter_inline(shape);
  return std::nullopt;
}

// The two that stand for all: the root, or whoever has the largest part, and the next.
std::array<Shape, 2> representatives(const Shape& shape) {
  std::array<Shape, 2> two{shape, shape};
  two[0].rank = std::max(shape.root, 0);
  if (!shape.counts.empty())
    two[0].rank = static_cast<int>(std::max_element(shape.counts.begin(), shape.counts.end()) - shape.counts.begin());
  two[1].rank = (two[0].rank + 1) % shape.ranks;
  return two;
}

}  // namespace

Selection select(OpCode op, const Shape& shape, const SelectOptions& options, std::vector<Candidate>* considered) {
  Selection selection;
  std::vector<Candidate> candidates;
  const auto make_two = [&](const Make& make) {
    const std::array<Shape, 2> two = representatives(shape);
    return std::array<Plan, 2>{make(two[0]), make(two[1])};
  };
  const auto consider = [&](const std::array<Plan, 2>& plans, bool reads, const char* memory) {
    candidates.push_back(
        {plans[0].name + (reads ? ", read by the system" : ""), plans[0].chunk, memory, price(plans, options.costs, reads)});
    return candidates.back().ns;
  };
  const auto report = [&] {
    if (considered) *considered = std::move(candidates);
  };
  if (std::optional<Plan> tiny = inline_plan(op, shape)) {
    if (considered) candidates.push_back({tiny->name, 0, "any", options.costs.exchange, true});
    report();
    selection.plan = std::move(*tiny);
    return selection;
  }
  const Ways ways = ways_of(op, shape);
  if (shape.ranks == 1) {
    selection.plan = ways.direct(shape);
    selection.otherwise = ways.through_slots[0](shape);
    if (considered) candidates.push_back({selection.plan.name, 0, "any", 0, true});
    report();
    return selection;
  }
  const Make* slots_way = nullptr;
  size_t slots_at = 0;
  bool lazy = false;  // a rank need not wait for all others
  for (const Make& make : ways.through_slots) {
    const std::array<Plan, 2> plans = make_two(make);
    consider(plans, false, "any");
    const Candidate& last = candidates.back();
    if (candidates.size() > 1 && last.plan == candidates.end()[-2].plan && last.chunk == candidates.end()[-2].chunk) {
      candidates.pop_back();  // all of it fits either piece
      continue;
    }
    if (slots_way && last.ns >= candidates[slots_at].ns) continue;
    slots_way = &make;
    slots_at = candidates.size() - 1;
    lazy = plans[0].lazy || plans[1].lazy;
  }
  const double slots_ns = candidates[slots_at].ns;
  const size_t direct_at = candidates.size();
  const std::array<Plan, 2> direct = make_two(ways.direct);
  const double direct_ns = consider(direct, false, "pool");
  const bool can_read = options.costs.can_read && ways.readable;
  const double read_ns = can_read ? consider(direct, true, "private") : 0;

  // Nobody knows before all have entered where the others' buffers lie. Slots at once are slower by slots - direct if all are in
  // pools, asking first is by an exchange if one is not, and by another where slots let ranks run ahead: what loses less when it is
  // wrong is right.
  Plan slots = (*slots_way)(shape);
  const double asking_ns = options.costs.exchange * (lazy ? 2 : 1);
  const bool eager = options.eager_bytes == kConfigAuto ? slots_ns - direct_ns <= asking_ns
                                                        : ways.payload <= static_cast<uint64_t>(options.eager_bytes);
  candidates[slots_at].chosen = true;
  if (eager) {
    selection.plan = std::move(slots);
  } else {
    selection.plan = ways.direct(shape);
    selection.otherwise = std::move(slots);
    candidates[direct_at].chosen = true;
    selection.reads = can_read && (options.always_read || read_ns < slots_ns + options.costs.exchange);
    if (selection.reads) {
      candidates[slots_at].chosen = false;
      candidates.back().chosen = true;
    }
  }
  report();
  return selection;
}

}  // namespace fsccl
