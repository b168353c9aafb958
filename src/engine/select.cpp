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
  if (shape.ranks > kManyRanks || shape.mirrored) return sizes;  // a message costs what a large piece does
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

// The candidates so far, priced by two plans each.
class Contest {
 public:
  Contest(const Shape& shape, const Costs& costs) : two_(representatives(shape)), costs_(costs) {}

  std::array<Plan, 2> plans_of(const Make& make) const { return {make(two_[0]), make(two_[1])}; }
  // Where it stands among the candidates.
  size_t enter(const std::array<Plan, 2>& plans, const Price& price, const char* memory, const char* how = "") {
    candidates.push_back({plans[0].name + how, plans[0].chunk, memory, price.ns});
    return candidates.size() - 1;
  }
  Price price_of(const std::array<Plan, 2>& plans, bool reads = false) const { return price(plans, costs_, reads); }

  std::vector<Candidate> candidates;

 private:
  std::array<Shape, 2> two_;
  const Costs& costs_;
};

struct Slots {
  const Make* make = nullptr;
  size_t at = 0;  // among the candidates
  Price price{};
  bool lazy = false;  // a rank need not wait for all others
};

Slots cheapest_slots(const Ways& ways, Contest& contest) {
  Slots best;
  for (const Make& make : ways.through_slots) {
    const std::array<Plan, 2> plans = contest.plans_of(make);
    const Price price = contest.price_of(plans);
    const size_t at = contest.enter(plans, price, "any");
    const std::vector<Candidate>& all = contest.candidates;
    if (at > 0 && all[at].plan == all[at - 1].plan && all[at].chunk == all[at - 1].chunk) {
      contest.candidates.pop_back();  // all of it fits either piece
      continue;
    }
    if (!best.make || price.ns < best.price.ns) best = {&make, at, price, plans[0].lazy || plans[1].lazy};
  }
  return best;
}

// Nobody knows before all have entered where the others' buffers lie. Slots at once are slower by what they take more than the
// direct way, if all are in pools; asking first is by an exchange, if one is not, and by another where slots let ranks run ahead.
// What loses less when it is wrong is right. Ranks that run ahead take of many calls in a row only what the busier one has to do.
bool better_at_once(const Slots& slots, double direct_ns, double exchange_ns) {
  const double in_a_row = slots.lazy ? slots.price.busy : slots.price.ns;
  return in_a_row - direct_ns <= exchange_ns * (slots.lazy ? 2 : 1);
}

Selection only(Plan plan, const SelectOptions& options, std::vector<Candidate>* considered) {
  if (considered) *considered = {{plan.name, 0, "any", plan.ranks > 1 ? options.costs.exchange : 0, true}};
  return {std::move(plan), {}, false};
}

}  // namespace

Selection select(OpCode op, const Shape& shape, const SelectOptions& options, std::vector<Candidate>* considered) {
  if (std::optional<Plan> tiny = inline_plan(op, shape)) return only(std::move(*tiny), options, considered);
  const Ways ways = ways_of(op, shape);
  if (shape.ranks == 1) return only(ways.direct(shape), options, considered);

  Contest contest(shape, options.costs);
  const Slots slots = cheapest_slots(ways, contest);
  std::vector<Candidate>& candidates = contest.candidates;
  Selection selection;
  if (shape.mirrored) {
    selection.plan = (*slots.make)(shape);
    candidates[slots.at].chosen = true;
    if (considered) *considered = std::move(candidates);
    return selection;
  }
  const std::array<Plan, 2> direct = contest.plans_of(ways.direct);
  const Price direct_price = contest.price_of(direct);
  const size_t direct_at = contest.enter(direct, direct_price, "pool");
  const bool can_read = options.costs.can_read && ways.readable;
  const size_t read_at = can_read ? contest.enter(direct, contest.price_of(direct, true), "private", ", read by the system") : 0;

  const bool eager = options.eager_bytes == kConfigAuto ? better_at_once(slots, direct_price.ns, options.costs.exchange)
                                                        : ways.payload <= static_cast<uint64_t>(options.eager_bytes);
  if (eager) {
    selection.plan = (*slots.make)(shape);
    candidates[slots.at].chosen = true;
  } else {
    selection.plan = ways.direct(shape);
    selection.otherwise = (*slots.make)(shape);
    selection.reads = can_read && (options.always_read || candidates[read_at].ns < slots.price.ns + options.costs.exchange);
    candidates[direct_at].chosen = true;
    candidates[selection.reads ? read_at : slots.at].chosen = true;
  }
  if (considered) *considered = std::move(candidates);
  return selection;
}

}  // namespace fsccl
