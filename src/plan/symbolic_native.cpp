// Runs native steps (plan.h) symbolically. A rank that comes to such a step reads the elements that
// it sends. The step ends when the ranks that it receives from have come to theirs, and has then
// written the elements that it receives. The step therefore counts as a signal to all ranks and a
// wait for the ranks that it receives from.
#include <algorithm>
#include <optional>

#include "plan/symbolic_run.h"

namespace fsccl {
namespace {

const Native::Part* part_for(const std::vector<Native::Part>& parts, int peer) {
  const auto found = std::find_if(parts.begin(), parts.end(),
                                  [&](const Native::Part& part) { return part.peer == peer; });
  return found == parts.end() ? nullptr : &*found;
}

Status check_parts(const Plan& plan, const std::vector<Native::Part>& parts) {
  for (const Native::Part& part : parts)
    if (part.peer < 0 || part.peer >= plan.ranks || !part.count ||
        part_for(parts, part.peer) != &part)
      return fail(FSCCL_ERR_INTERNAL,
                  "a part for rank {} has {} elements, or is not the only one for this rank",
                  part.peer, part.count);
  return success();
}

// Checks a native step of `mine` against the same step of `other`.
Status check_pair(const Plan& mine, const Plan& other, size_t which) {
  const Native &ours = mine.natives[which], &theirs = other.natives[which];
  if (ours.by != theirs.by || ours.reduces != theirs.reduces ||
      ours.in_rank_order != theirs.in_rank_order || ours.averages != theirs.averages ||
      ours.is_barrier != theirs.is_barrier)
    return fail(FSCCL_ERR_INTERNAL, "it is another step on rank {}", other.rank);
  const Native::Part *const sent = part_for(ours.sends, other.rank), *const received =
                                                                         part_for(theirs.receives,
                                                                                  mine.rank);
  const uint64_t out = sent ? sent->count : 0, in = received ? received->count : 0;
  if (out != in)
    return fail(FSCCL_ERR_INTERNAL, "it sends {} elements to rank {}, which receives {}", out,
                other.rank, in);
  return success();
}

Status check_native(const std::vector<Plan>& plans, const Plan& plan, size_t which) {
  const Native& native = plan.natives[which];
  FSCCL_TRY(check_parts(plan, native.sends));
  FSCCL_TRY(check_parts(plan, native.receives));
  for (const Plan& other : plans) FSCCL_TRY(check_pair(plan, other, which));
  if (!native.reduces || native.receives.empty()) return success();
  const Native::Part& first = native.receives.front();
  const bool one_place =
      std::all_of(native.receives.begin(), native.receives.end(), [&](const Native::Part& part) {
        return part.offset == first.offset && part.count == first.count;
      });
  if (!one_place || native.receives.size() != plans.size())
    return fail(FSCCL_ERR_INTERNAL, "it does not reduce what all ranks send to one part");
  return success();
}

}  // namespace

Status check_natives(const std::vector<Plan>& plans) {
  for (const Plan& plan : plans) {
    const auto wrong = [&](uint32_t step, const std::string& what) {
      return fail(FSCCL_ERR_INTERNAL, "{}", at_step(plan, step, what));
    };
    if (plan.natives.empty() && plans[0].natives.empty() && plan.ticks) continue;
    if (plan.natives.size() != plans[0].natives.size() || plan.natives.empty() || plan.ticks ||
        plan.rounds != 1)
      return wrong(0,
                   "native steps are as many on all ranks, at least one, in one round without "
                   "ticks");
    size_t next = 0;
    for (uint32_t i = 0; i < plan.steps.size(); i++) {
      const Step& step = plan.steps[i];
      if (step.kind != StepKind::native) continue;
      if (step.tick != next || next == plan.natives.size())
        return wrong(i, "native steps are not in order");
      if (const Status status = check_native(plans, plan, next++); !status.ok())
        return wrong(i, status.text());
    }
    if (next != plan.natives.size())
      return wrong(static_cast<uint32_t>(plan.steps.size()), "a native step is missing");
  }
  return success();
}

// Carries out a native step. Returns false if a rank that this rank receives from has not reached
// the step.
Result<bool> SymbolicRun::do_native(int rank, uint32_t index, const Step& step) {
  const Native& native = plans_[static_cast<size_t>(rank)].natives[step.tick];
  const int tick = plans_[0].ticks + step.tick;
  if (!order_.signalled(rank, tick, rank)) FSCCL_TRY(begin_native(rank, index, step, native));
  const auto waits_for = [&](int peer) {
    return native.is_barrier || part_for(native.receives, peer) != nullptr;
  };
  for (int peer = 0; peer < plans_[0].ranks; peer++)
    if (waits_for(peer) && !order_.signalled(peer, tick, rank)) return false;
  order_.begin_wait(rank);
  for (int peer = 0; peer < plans_[0].ranks; peer++)
    if (peer != rank && waits_for(peer)) order_.wait(rank, peer, tick);
  FSCCL_TRY(native.reduces ? receive_sum(rank, index, step, native)
                           : receive_parts(rank, index, step, native));
  return true;
}

Status SymbolicRun::begin_native(int rank, uint32_t index, const Step& step, const Native& native) {
  if (step.from != step.to || !dtype_valid(step.from))
    return fail(FSCCL_ERR_INTERNAL, "a native step does not convert");
  const int tick = plans_[0].ticks + step.tick;
  for (const Native::Part& part : native.sends) {
    const Operand operand{step.src.buffer, rank, part.offset};
    std::vector<SymbolicRange>& sent = sent_[{rank, part.peer, step.tick}];
    FSCCL_ASSIGN(sent, read(rank, index, operand, part.count * dtype_size(step.from)));
  }
  for (int peer = 0; peer < plans_[0].ranks; peer++) order_.signal(rank, index, tick, peer);
  return success();
}

// Checks a part that the rank receives. A part whose source is its destination stays there. No
// other received part may overlap a part that is sent, because parts come in any order.
Status SymbolicRun::check_received(int rank, const Step& step, const Native& native,
                                   const Native::Part& part) const {
  const uint64_t bytes = part.count * dtype_size(step.from);
  for (const Native::Part& sent : native.sends)
    FSCCL_TRY(check_alias({step.dst.buffer, rank, part.offset}, bytes,
                          {step.src.buffer, rank, sent.offset}, sent.count * dtype_size(step.from),
                          part.peer == rank || native.reduces));
  return success();
}

Status SymbolicRun::receive_parts(int rank, uint32_t index, const Step& step,
                                  const Native& native) {
  for (const Native::Part& part : native.receives) {
    const Native::Part* const own = part.peer == rank ? part_for(native.sends, rank) : nullptr;
    const Operand operand{step.dst.buffer, rank, part.offset};
    if (own) {
      const Location to = locate(operand), from = locate({step.src.buffer, rank, own->offset});
      if (to.memory == from.memory && to.offset == from.offset) continue;
    }
    FSCCL_TRY(check_received(rank, step, native, part));
    for (const SymbolicRange& range : sent_[{part.peer, rank, step.tick}]) {
      Operand at = operand;
      at.offset += range.begin;
      FSCCL_TRY(write(rank, index, at, range.end - range.begin, range.value));
    }
  }
  return success();
}

Status SymbolicRun::receive_sum(int rank, uint32_t index, const Step& step, const Native& native) {
  if (native.receives.empty()) return success();
  FSCCL_TRY(check_received(rank, step, native, native.receives.front()));
  std::optional<SymbolicValue> sum;
  for (const Native::Part& part : native.receives) {
    const auto& ranges = sent_[{part.peer, rank, step.tick}];
    for (const SymbolicRange& range : ranges) {
      const SymbolicValue& value = range.value;
      const uint64_t base = value.offset - range.begin;
      if (!sum) {
        sum = SymbolicValue{0, value.buffer, base, step.from, step.to, true};
        sum->any_order = !native.in_rank_order;
        sum->undivided = !native.averages;
      }
      if (!value.raw() || value.rank != part.peer || value.buffer != sum->buffer ||
          base != sum->offset)
        return fail(FSCCL_ERR_INTERNAL, "rank {} sends {}, not what the others send to be reduced",
                    part.peer, value.text());
    }
  }
  const Native::Part& to = native.receives.front();
  return write(rank, index, {step.dst.buffer, rank, to.offset}, to.count * dtype_size(step.to),
               *sum);
}

Status SymbolicRun::do_divide(int rank, uint32_t index, const Step& step) {
  const uint64_t bytes = step.count * dtype_size(step.to);
  FSCCL_TRY(check_operand(rank, step.dst, bytes, true));
  FSCCL_ASSIGN(const auto ranges, read(rank, index, step.dst, bytes));
  const Location to = locate(step.dst);
  note(to.memory, to.offset, bytes, true, order_.now(rank, index));
  for (const SymbolicRange& range : ranges) {
    SymbolicValue value = range.value;
    if (!value.undivided)
      return fail(FSCCL_ERR_INTERNAL, "divides {}, which is no sum that is to be divided",
                  value.text());
    value.undivided = false;
    FSCCL_TRY(
        memories_[to.memory].write(to.offset + range.begin, range.end - range.begin, value, false));
  }
  return success();
}

}  // namespace fsccl
