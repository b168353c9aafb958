#include "select/select.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "plan/turn.h"

namespace fsccl {
namespace {

using PlanMaker = std::function<Plan(const Shape&)>;
constexpr int kManyRanks = 32;

// A maker of a plan that goes through slots. `piece` is the size of a slot's pieces in bytes.
struct SlotPlanMaker {
  Algorithm algorithm;
  uint64_t piece;
  PlanMaker make;
};

// The makers of a collective's candidates. The plan of `direct` may touch peers' buffers. A barrier
// has `direct` alone.
struct PlanMakers {
  PlanMaker direct;
  std::vector<SlotPlanMaker> through_slots;
  bool readable = true;  // `direct` only reads peers' memory
  PlanMaker reading;     // makes a plan that only reads, if `direct` also writes; may be null
  PlanMaker writing;     // makes a plan that reads and writes private memory; may be null
  bool can_be_read() const { return readable || reading; }
  uint64_t payload = 0;  // bytes, as FSCCL_EAGER_BYTES counts them
};

// Returns the sizes of pieces to consider: `most` and fractions of it. Smaller pieces overlap
// sooner, larger ones need fewer exchanges. With many ranks only `most` is considered, because a
// slot then holds small pieces anyway, and plans are long.
std::vector<uint64_t> chunks_of(const Shape& shape, uint64_t most) {
  std::vector<uint64_t> sizes{most};
  // In mirrored slots each piece costs a message, which takes as long as a large piece.
  if (shape.ranks > kManyRanks || shape.mirrored) return sizes;
  const uint64_t least = std::max<uint64_t>(4096, 64 * static_cast<uint64_t>(shape.ranks));
  for (const uint64_t part : {4, 16})
    if (most / part >= least && shape.whole_bytes() > most / part) sizes.push_back(most / part);
  return sizes;
}

uint64_t turn_bytes_of(const Shape& shape) {
  return turn_bytes(shape.slot_bytes, shape.mirrored, shape.ranks);
}

// Adds a maker for each size of pieces, and for `asked`, the size in a rule, if it is not 0.
void add_slots(PlanMakers& makers, const Shape& shape, uint64_t most, uint64_t asked,
               Algorithm algorithm, const std::function<Plan(const Shape&, uint64_t)>& make) {
  std::vector<uint64_t> pieces = chunks_of(shape, most);
  if (asked && std::find(pieces.begin(), pieces.end(), asked) == pieces.end())
    pieces.push_back(asked);
  for (const uint64_t bytes : pieces)
    makers.through_slots.push_back(
        {algorithm, bytes, [make, bytes](const Shape& at) { return make(at, bytes); }});
}

PlanMakers makers_of_movement(const Shape& shape, uint64_t asked,
                              DataMovement (*movement)(const Shape&)) {
  PlanMakers makers;
  makers.direct = [=](const Shape& at) { return move_direct(movement(at)); };
  makers.payload = shape.largest_part_bytes();
  const DataMovement moved = movement(shape);
  const auto receivers = static_cast<uint64_t>(moved.same_to_all ? 1 : shape.ranks - 1);
  const uint64_t sent = moved.longest * shape.size() * receivers;
  const uint64_t most = moved.every_rank_sends
                            ? turn_bytes_of(shape)
                            : lone_bytes(shape.slot_bytes, shape.mirrored, shape.ranks, sent);
  add_slots(makers, shape, most, asked, Algorithm::slots,
            [=](const Shape& at, uint64_t bytes) { return move_slots(movement(at), bytes); });
  return makers;
}

PlanMakers makers_of_reduction(const Shape& shape, uint64_t asked,
                               ReductionShape (*reduction)(const Shape&),
                               ReductionShape (*whole)(const Shape&)) {
  PlanMakers makers;
  makers.direct = [=](const Shape& at) { return reduce_direct(reduction(at)); };
  makers.payload = reduction(shape).input_bytes;
  makers.readable = reduction(shape).deliver == Deliver::self;
  const uint64_t most = turn_bytes_of(shape);
  const auto add = [&](Algorithm algorithm, ReductionShape (*kind)(const Shape&)) {
    add_slots(makers, shape, most, asked, algorithm,
              [=](const Shape& at, uint64_t bytes) { return reduce_slots(kind(at), bytes); });
  };
  add(Algorithm::slots, reduction);
  if (whole) add(Algorithm::small_slots, whole);
  return makers;
}

PlanMakers makers_of(OpCode op, const Shape& shape, uint64_t asked) {
  switch (op) {
    case OpCode::barrier: {
      PlanMakers makers;
      makers.direct = [](const Shape& at) { return barrier(at.rank, at.ranks); };
      return makers;
    }
    case OpCode::all_gather:
    case OpCode::all_gather_v:
      return makers_of_movement(shape, asked, all_gather_movement);
    case OpCode::gather:
      return makers_of_movement(shape, asked, gather_movement);
    case OpCode::scatter:
      return makers_of_movement(shape, asked, scatter_movement);
    case OpCode::all_to_all:
      return makers_of_movement(shape, asked, all_to_all_movement);
    case OpCode::send:  // on a communicator of two ranks, from rank 0 to rank 1
    case OpCode::broadcast: {
      PlanMakers makers = makers_of_movement(shape, asked, broadcast_movement);
      makers.direct = broadcast_balanced;
      makers.readable = false;
      makers.reading = broadcast_read;
      // The receiver of a message does not depend on what its sender does meanwhile.
      if (op == OpCode::broadcast) makers.writing = broadcast_balanced_read;
      return makers;
    }
    case OpCode::reduce_scatter:
    case OpCode::reduce_scatter_v:
      return makers_of_reduction(shape, asked, reduction_of_reduce_scatter, nullptr);
    case OpCode::all_reduce: {
      PlanMakers makers =
          makers_of_reduction(shape, asked, reduction_of_all_reduce, reduction_of_small_all_reduce);
      makers.reading = all_reduce_read;
      return makers;
    }
    case OpCode::reduce:
      return makers_of_reduction(shape, asked, reduction_of_reduce, reduction_of_small_reduce);
    default:
      return {};
  }
}

// Returns the bytes that a slot must hold for a plan in steps, if there is one.
std::optional<uint64_t> bytes_in_steps(OpCode op, const Shape& shape) {
  const auto ranks = static_cast<uint64_t>(shape.ranks);
  switch (op) {
    case OpCode::barrier:
      return 0;
    case OpCode::broadcast:
      return shape.count * shape.size();
    case OpCode::all_gather:
    case OpCode::all_gather_v:
      return shape.largest_part_bytes() * ranks;
    case OpCode::all_reduce:
      return shape.count * shape.size() * ranks;
    case OpCode::reduce_scatter:
    case OpCode::reduce_scatter_v:
      return shape.whole_bytes() * ranks;
    default:
      return std::nullopt;
  }
}

Plan plan_in_steps(OpCode op, const Shape& shape, int steps) {
  switch (op) {
    case OpCode::barrier:
      return barrier_in_steps(shape.rank, shape.ranks, steps);
    case OpCode::broadcast:
      return broadcast_in_steps(shape, steps);
    case OpCode::all_reduce:
      return all_reduce_in_steps(shape, steps);
    case OpCode::reduce_scatter:
    case OpCode::reduce_scatter_v:
      return reduce_scatter_in_steps(shape, steps);
    default:
      return all_gather_in_steps(shape, steps);
  }
}

// Adds a maker for each number of steps that needs fewer messages than one step less.
void add_steps(PlanMakers& makers, OpCode op, const Shape& shape) {
  const std::optional<uint64_t> bytes = bytes_in_steps(op, shape);
  if (!bytes || *bytes > turn_bytes_of(shape)) return;
  constexpr std::array kByNumber{Algorithm::steps_2, Algorithm::steps_3, Algorithm::steps_4};
  for (int steps = 2; steps <= kMaxTicks; steps++)
    if (const int radix = radix_of(shape.ranks, steps); radix < radix_of(shape.ranks, steps - 1))
      makers.through_slots.push_back(
          {kByNumber[static_cast<size_t>(steps - 2)], 0,
           [op, steps](const Shape& at) { return plan_in_steps(op, at, steps); }});
}

// Returns the plan for data so small that they travel in the signals, if there is one. It is the
// best plan, unless each signal is a message to every rank.
std::optional<Plan> inline_plan(OpCode op, const Shape& shape) {
  const bool tiny = shape.largest_part_bytes() <= kInlineBytes;
  if (op == OpCode::barrier) return barrier(shape.rank, shape.ranks);
  if ((op == OpCode::all_gather || op == OpCode::all_gather_v) && tiny)
    return all_gather_inline(shape);
  if ((op == OpCode::broadcast || op == OpCode::send) && tiny) return broadcast_inline(shape);
  if (op == OpCode::all_reduce && tiny) return all_reduce_inline(shape);
  if ((op == OpCode::reduce_scatter || op == OpCode::reduce_scatter_v) &&
      shape.whole_bytes() <= kInlineBytes)
    return reduce_scatter_inline(shape);
  return std::nullopt;
}

// Returns the shapes of the two ranks that stand for all: the root or the rank with the largest
// part, and the rank after it.
std::array<Shape, 2> representatives(const Shape& shape) {
  std::array<Shape, 2> two{shape, shape};
  two[0].rank = std::max(shape.root, 0);
  if (!shape.counts.empty())
    two[0].rank = static_cast<int>(std::max_element(shape.counts.begin(), shape.counts.end()) -
                                   shape.counts.begin());
  two[1].rank = (two[0].rank + 1) % shape.ranks;
  return two;
}

// The candidates. Each is priced by the plans of two ranks.
class PricedCandidates {
 public:
  PricedCandidates(const Shape& shape, const Costs& costs)
      : two_(representatives(shape)), costs_(costs) {}

  std::array<Plan, 2> plans_of(const PlanMaker& make) const {
    return {make(two_[0]), make(two_[1])};
  }
  // Adds a candidate, and returns its index.
  size_t add(const std::string& plan, uint64_t chunk, double ns, const char* memory) {
    candidates.push_back({plan, chunk, memory, ns});
    return candidates.size() - 1;
  }
  Price price_of(const std::array<Plan, 2>& plans, bool reads = false) const {
    return price(plans, costs_, reads);
  }

  std::vector<Candidate> candidates;

 private:
  std::array<Shape, 2> two_;
  const Costs& costs_;
};

// A candidate that goes through slots.
struct SlotCandidate {
  const PlanMaker* make = nullptr;
  size_t at = 0;  // its index among the candidates
  Price price{};
  bool completes_early = false;  // a rank need not wait for all others
  uint32_t rounds = 1;

  // Returns the time of one of many calls in a row. If ranks may run ahead, a call takes only the
  // time in which the busier rank does not wait.
  double in_a_row() const { return completes_early ? price.busy : price.ns; }
  // Returns the mean of the two times, because a call may be alone or one of many.
  double expected() const { return (price.ns + in_a_row()) / 2; }
  // Returns the time of a call with a root that has to learn where peers' buffers lie. If it asks
  // each time, no rank runs ahead.
  double expected_of_rooted(double asking) const {
    return rounds <= kMostRoundsUnasked ? expected() : price.ns + asking;
  }
};

// Returns true if the rule names an algorithm that moves bytes through slots.
bool names_slots(const Rule* rule, const PlanMakers& makers) {
  return rule &&
         std::any_of(makers.through_slots.begin(), makers.through_slots.end(),
                     [&](const SlotPlanMaker& one) { return one.algorithm == rule->algorithm; });
}

// Prices all candidates that go through slots. Returns them, or those that the rule allows if there
// is a rule.
std::vector<SlotCandidate> price_slots(const PlanMakers& makers, const Rule* rule, uint64_t asked,
                                       PricedCandidates& priced) {
  std::vector<SlotCandidate> choice;
  const bool named = names_slots(rule, makers);
  const auto allowed = [&](const SlotPlanMaker& one) {
    return (!named || rule->algorithm == one.algorithm) && (!asked || asked == one.piece);
  };
  for (const SlotPlanMaker& one : makers.through_slots) {
    const std::array<Plan, 2> plans = priced.plans_of(one.make);
    SlotCandidate slots{&one.make, 0, priced.price_of(plans),
                        plans[0].completes_early || plans[1].completes_early, plans[0].rounds};
    slots.at = priced.add(plans[0].name, plans[0].chunk ? one.piece : 0, slots.expected(), "any");
    const std::vector<Candidate>& all = priced.candidates;
    if (slots.at > 0 && all[slots.at].plan == all[slots.at - 1].plan &&
        all[slots.at].chunk == all[slots.at - 1].chunk) {
      // A slot has room for all bytes with either size of pieces, so the two plans are the same.
      priced.candidates.pop_back();
      slots.at--;
    }
    if (allowed(one)) choice.push_back(slots);
  }
  return choice;
}

// Returns true if it is better to send through slots at once (eagerly) than to ask first where
// peers' buffers lie, which no rank knows before all have entered. If all buffers are in pools,
// eager sending loses the time by which slots are slower than the direct plan. If some buffer is
// not, asking first loses an exchange, and another one if slots let ranks run ahead. The choice is
// the one that loses less when it is wrong.
bool prefer_eager(const SlotCandidate& slots, double direct_ns, double exchange_ns) {
  return slots.in_a_row() - direct_ns <= exchange_ns * (slots.completes_early ? 2 : 1);
}

// Returns a selection without alternatives.
Selection only(Plan plan, const SelectOptions& options, const char* why,
               std::vector<Candidate>* considered) {
  const double ns = plan.ranks > 1 ? options.costs.exchange : 0;
  if (considered) *considered = {{plan.name, 0, "any", ns, true}};
  return {std::move(plan), {}, false, ns, why};
}

// Returns the bytes of the pieces that a rule asks for; 0: the rule asks for none.
uint64_t piece_asked(const Rule* named, const Shape& shape) {
  if (!named || !named->chunk) return 0;
  return std::clamp<uint64_t>(named->chunk, 64 * static_cast<uint64_t>(shape.ranks),
                              shape.slot_bytes);
}

// Returns the rule if it can be followed. Otherwise returns null, and sets *why_not to the reason.
const Rule* usable(const Rule* rule, const Shape& shape, const PlanMakers& makers,
                   const SelectOptions& options, const char** why_not) {
  if (!rule) return nullptr;
  if (shape.mirrored &&
      (rule->algorithm == Algorithm::direct || rule->algorithm == Algorithm::read))
    *why_not = "these ranks share no memory, and only slots move bytes between them";
  else if (options.only_slots &&
           (rule->algorithm == Algorithm::direct || rule->algorithm == Algorithm::read))
    *why_not = "FSCCL_CHECKSUM=1 checks what goes through slots";
  else if (rule->in_steps() && !names_slots(rule, makers))
    *why_not =
        "plans in steps are for ranks of several hosts, enough of them for so many steps, for what "
        "fits a slot of all, and for transports that can signal one peer";
  else if (rule->algorithm == Algorithm::read && !(options.costs.can_read && makers.can_be_read()))
    *why_not = "the system lets no rank read another's memory here, or FSCCL_SINGLE_COPY is off";
  else
    return rule;
  return nullptr;
}

// A call in which the system reads is an operation in the ring, and not on the fast path of small
// calls (engine/small_call.h), which saves about so much. Calls of more bytes have no fast path
// either, but the difference is then a small part of their time.
constexpr double kOperationNs = 600;

// Adds the candidate that reads private memory, and returns its place. All ranks learn in the first
// exchange of the direct plan, which takes `asking` ns, where the buffers are. A plan that replaces
// the direct one comes after this exchange. The cheaper one of two such plans becomes
// makers.reading.
size_t add_read(OpCode op, PlanMakers& makers, const std::array<Plan, 2>& direct, double asking,
                bool may_write, PricedCandidates* priced) {
  const auto price_of = [&](const PlanMaker& make) {
    return priced->price_of(priced->plans_of(make), true).ns;
  };
  double ns =
      makers.reading ? asking + price_of(makers.reading) : priced->price_of(direct, true).ns;
  if (may_write && makers.writing)
    if (const double written = asking + price_of(makers.writing); written < ns) {
      makers.reading = makers.writing;
      ns = written;
    }
  ns += kOperationNs;
  return priced->add(std::string(op_name(op)) + "_read", 0, ns, "private");
}

}  // namespace

uint64_t call_bytes(OpCode op, const Shape& shape) {
  const bool whole = op == OpCode::all_reduce || op == OpCode::reduce || op == OpCode::broadcast ||
                     op == OpCode::send;
  if (whole) return shape.count * shape.size();
  // Displacements are each rank's own, and the bytes must be the same on all ranks.
  const uint64_t elements =
      shape.counts.empty() ? shape.count * static_cast<uint64_t>(shape.ranks)
                           : std::accumulate(shape.counts.begin(), shape.counts.end(), uint64_t{0});
  return elements * shape.size();
}

Selection select(OpCode op, const Shape& shape, const SelectOptions& options,
                 std::vector<Candidate>* considered) {
  const Rule* const named = options.rule(rule_of_plan, op, call_bytes(op, shape));
  const uint64_t asked = piece_asked(named, shape);
  std::optional<Plan> tiny;
  if (!named || named->algorithm == Algorithm::direct || named->algorithm == Algorithm::read)
    tiny = inline_plan(op, shape);
  PlanMakers makers = makers_of(op, shape, asked);
  if (tiny)
    makers.through_slots = {
        {Algorithm::direct, 0, [op](const Shape& at) { return *inline_plan(op, at); }}};
  if (shape.mirrored && options.signals_one) add_steps(makers, op, shape);
  // Between hosts the plan is priced, because it is a stage or is compared with stages (stages.h).
  if (tiny && (named || (makers.through_slots.size() == 1 && !shape.mirrored)))
    return only(std::move(*tiny), options, "it fits into the signals", considered);
  if (shape.ranks == 1) return only(makers.direct(shape), options, "there is one rank", considered);
  const char* why_not = nullptr;
  const Rule* const rule = usable(named, shape, makers, options, &why_not);
  if (why_not && !considered) announce_ignored(*named, op, why_not);
  PricedCandidates priced(shape, options.costs);
  const std::vector<SlotCandidate> choice = price_slots(makers, rule, asked, priced);
  SlotCandidate slots = *std::ranges::min_element(choice, {}, &SlotCandidate::expected);
  std::vector<Candidate>& candidates = priced.candidates;
  Selection selection;
  if (considered)
    selection.why = rule      ? rule->origin + " says so"
                    : why_not ? fmt::format("least predicted time; {} is not followed: {}",
                                            named->origin, why_not)
                              : "least predicted time";
  bool eager = shape.mirrored || options.only_slots;
  if (!eager) {
    const std::array<Plan, 2> direct = priced.plans_of(makers.direct);
    const double direct_ns = priced.price_of(direct).ns;
    const size_t direct_at = priced.add(direct[0].name, 0, direct_ns, "pool");
    const bool can_read = options.costs.can_read && makers.can_be_read();
    const double asking = options.costs.exchange;
    const size_t read_at =
        can_read ? add_read(op, makers, direct, asking, options.costs.may_write(), &priced) : 0;
    eager = rule ? names_slots(rule, makers)
            : options.eager_bytes == kConfigAuto
                ? prefer_eager(slots, direct_ns, asking)
                : makers.payload <= static_cast<uint64_t>(options.eager_bytes);
    if (considered && !rule && options.eager_bytes != kConfigAuto)
      selection.why = "FSCCL_EAGER_BYTES says so";
    if (!eager) {
      if (rooted(op))
        slots = *std::ranges::min_element(
            choice, {}, [&](const SlotCandidate& one) { return one.expected_of_rooted(asking); });
      const bool rule_decides = rule && (rule->algorithm == Algorithm::read || asked);
      const bool reads =
          can_read && (rule_decides ? rule->algorithm == Algorithm::read
                                    : options.always_read ||
                                          candidates[read_at].ns < slots.expected() + asking);
      selection.plan = makers.direct(shape);
      selection.fallback = reads && makers.reading ? makers.reading(shape) : (*slots.make)(shape);
      // Otherwise the direct plan needs buffers in pools.
      selection.reads = reads && !makers.reading;
      selection.ns = reads ? candidates[read_at].ns : slots.expected() + asking;
      candidates[direct_at].chosen = true;
      candidates[reads ? read_at : slots.at].chosen = true;
    }
  }
  if (eager) {
    selection.plan = (*slots.make)(shape);
    selection.ns = slots.expected();
    candidates[slots.at].chosen = true;
  }
  if (considered) *considered = std::move(candidates);
  return selection;
}

}  // namespace fsccl
