#include "plan/verify.h"

#include <algorithm>

#include "plan/symbolic_run.h"
#include "plan/unroll.h"

namespace fsccl {
namespace {

constexpr size_t kMaxAddressesInSignal = 2;

// Checks what must hold before any step can be run.
Status check_shape(const std::vector<Plan>& plans) {
  if (plans.empty()) return fail(FSCCL_ERR_INTERNAL, "no plans to verify");
  const Plan& first = plans[0];
  // A plan without ticks has native steps.
  if (first.ticks < (first.natives.empty() ? 1 : 0) || first.ticks > kMaxTicks)
    return fail(FSCCL_ERR_INTERNAL, "plan {} has {} ticks; 1 .. {} are possible", first.name,
                first.ticks, kMaxTicks);
  for (size_t r = 0; r < plans.size(); ++r) {
    const Plan& plan = plans[r];
    const auto wrong = [&](const char* what) {
      return fail(FSCCL_ERR_INTERNAL, "plan {} of rank {} ({} of {} plans): {}", plan.name,
                  plan.rank, r, plans.size(), what);
    };
    if (plan.rank != static_cast<int>(r)) return wrong("its rank is not its index");
    if (plan.ranks != static_cast<int>(plans.size()))
      return wrong("its number of ranks is not the number of plans");
    if (plan.name != first.name || plan.ticks != first.ticks || plan.rounds != first.rounds ||
        plan.chunk != first.chunk || plan.mirrored != first.mirrored ||
        plan.relayed != first.relayed || plan.quiet != first.quiet || plan.two_way != first.two_way)
      return wrong(
          "its algorithm, its ticks, its rounds, its kind of slots, whether it is quiet or whether "
          "it is two-way differ from rank 0's");
    if (plan.quiet && (plan.ticks > 1 || plan.relayed))
      return wrong("a quiet plan has one tick a round, and is not relayed");
    for (const Step& step : plan.steps)
      if (step.optional && (!plan.quiet || step.kind != StepKind::signal || step.count ||
                            &step != &plan.steps.front()))
        return wrong(
            "only the first step of a quiet plan, a signal that carries nothing, is optional");
    if (plan.relayed && (!plan.mirrored || plan.completes_early || plan.rounds > 1))
      return wrong("a relayed plan has one round, waits for all ranks, and its slots are mirrored");
    if (plan.chunk % 64) return wrong("its rounds cut elements: a chunk is whole lines");
    if (plan.buffers.size() != first.buffers.size())
      return wrong("its number of buffers differs from rank 0's");
    size_t in_signal = 0;
    for (size_t i = 0; i < plan.buffers.size(); ++i) {
      const Buffer& mine = plan.buffers[i];
      const Buffer& other = first.buffers[i];
      if (mine.role != other.role || mine.shared != other.shared || mine.guarded != other.guarded)
        return wrong("a buffer's role, shared or guarded differs from rank 0's");
      if (mine.shared && mine.bytes != other.bytes)
        return wrong("a shared buffer's size differs from rank 0's");
      if (plan.mirrored &&
          (mine.shared || mine.address_in_signal || mine.symmetric || mine.address_exchanged))
        return wrong("its slots are mirrored, and peers touch another buffer of it");
      in_signal +=
          mine.address_in_signal && !mine.shared && !mine.symmetric && !mine.address_exchanged;
    }
    if (in_signal > kMaxAddressesInSignal)
      return wrong("more than 2 buffers have their addresses in the signal, which has room for 2");
  }
  return success();
}

// Checks rule 1: every rank has entered, has signalled each tick that it may not leave out, and has
// itself seen every peer enter. In a relayed plan a rank may have learned from others that a peer
// has entered.
Status check_signals(const std::vector<Plan>& plans, const SymbolicRun& run) {
  for (const Plan& plan : plans) {
    const auto end = static_cast<uint32_t>(plan.steps.size());
    for (int q = 0; q < plan.ranks && plan.relayed; ++q)
      if (q != plan.rank && !run.order().knows_entered(plan.rank, q))
        return fail(FSCCL_ERR_INTERNAL, "{}",
                    at_step(plan, end, fmt::format("does not know that rank {} has entered", q)));
    if (plan.relayed) continue;
    for (int tick = 0; !plan.quiet && tick < (plan.mirrored ? std::min(1, plan.ticks) : plan.ticks);
         ++tick)
      if (!run.order().signalled(plan.rank, tick, plan.rank))
        return fail(FSCCL_ERR_INTERNAL, "{}",
                    at_step(plan, end, fmt::format("tick {} was never signalled", tick)));
    for (int q = 0; q < plan.ranks && !plan.completes_early && plan.ticks; ++q)
      if (q != plan.rank && !run.waited_enter(plan.rank, q))
        return fail(FSCCL_ERR_INTERNAL, "{}",
                    at_step(plan, end, fmt::format("never waited for rank {} to enter", q)));
  }
  return success();
}

std::string text_of(const std::vector<Plan>& plans, const MemoryAccess& access) {
  const char* how = access.write ? "writes" : "reads";
  return at_step(plans[static_cast<size_t>(access.moment.rank)], access.moment.step,
                 fmt::format("{} bytes {} .. {}", how, access.begin, access.end - 1));
}

Status check_conflicts(const std::vector<Plan>& plans, SymbolicRun& run) {
  for (size_t m = 0; m < run.memories(); ++m) {
    const auto conflict = find_conflict(run.accesses(m), run.order());
    if (!conflict) continue;
    const Plan& owner = plans[m % plans.size()];
    return fail(FSCCL_ERR_INTERNAL,
                "two accesses to {} of rank {} are not ordered. First: {}. Second: {}",
                owner.buffers[m / plans.size()].name, owner.rank, text_of(plans, conflict->first),
                text_of(plans, conflict->second));
  }
  return success();
}

// Checks rule 2: when a rank's plan ends, no peer accesses the rank's memory any more. Reads of a
// guarded buffer may go on, because its reuse waits for them, unless the caller may write to it.
Status check_end(const std::vector<Plan>& plans, SymbolicRun& run) {
  for (const Plan& plan : plans) {
    const auto steps = static_cast<uint32_t>(plan.steps.size());
    const Moment end = run.order().now(plan.rank, steps);
    for (uint32_t b = 0; b < plan.buffers.size(); ++b) {
      if (plan.buffers[b].slot) continue;  // the window of ticks guards its reuse
      for (const MemoryAccess& access : run.accesses(run.locate({b, plan.rank, 0}).memory)) {
        if (access.moment.rank == plan.rank || access.begin == access.end ||
            run.order().before(access.moment, end))
          continue;
        if (!access.write && plan.buffers[b].guarded && !plan.buffers[b].writable) continue;
        const std::string why = fmt::format("the plan ends while {} may still be in use by: {}",
                                            plan.buffers[b].name, text_of(plans, access));
        return fail(FSCCL_ERR_INTERNAL, "{}", at_step(plan, steps, why));
      }
    }
  }
  return success();
}

struct Span {
  uint64_t begin, end;
};

Status check_one(const std::vector<Plan>& plans, const SymbolicRun& run, const Expected& want,
                 std::vector<std::vector<Span>>& covered) {
  const auto ranks = static_cast<int>(plans.size());
  const auto exists = [&](const Operand& operand) {
    return operand.rank >= 0 && operand.rank < ranks && operand.buffer < plans[0].buffers.size();
  };
  if (!exists(want.operand) || (!want.reduced && !exists(want.source)) ||
      want.source.buffer >= plans[0].buffers.size())
    return fail(FSCCL_ERR_INTERNAL, "the expectation names a operand that does not exist");
  const Plan& plan = plans[static_cast<size_t>(want.operand.rank)];
  const std::string where = fmt::format("plan {}, rank {}: result {}", plan.name, plan.rank,
                                        plan.buffers[want.operand.buffer].name);
  const uint64_t bytes = want.count * dtype_size(want.to);
  const SymbolicRun::Location result = run.locate(want.operand);
  covered[result.memory].push_back({result.offset, result.offset + bytes});
  const auto ranges = run.memory(result.memory).read(result.offset, bytes);
  if (!ranges.ok()) return fail(FSCCL_ERR_INTERNAL, "{}: {}", where, ranges.status().text());
  const bool shared = plan.buffers[want.source.buffer].shared;
  for (const SymbolicRange& range : ranges.value()) {
    SymbolicValue value{want.reduced || shared ? 0 : want.source.rank,
                        want.source.buffer,
                        want.source.offset,
                        want.from,
                        want.to,
                        want.reduced};
    value.any_order = want.any_order && range.value.any_order;
    if (!value.advance(range.begin - result.offset) || !(value == range.value))
      return fail(FSCCL_ERR_INTERNAL, "{}, bytes {} .. {}: holds {}, but should hold {}", where,
                  range.begin, range.end - 1, range.value.text(), value.text());
  }
  return success();
}

// Checks that only results and scratch memory have been written.
Status check_strays(const std::vector<Plan>& plans, const SymbolicRun& run,
                    std::vector<std::vector<Span>>& covered) {
  for (size_t m = 0; m < run.memories(); ++m) {
    const Buffer& buffer = plans[0].buffers[m / plans.size()];
    if (buffer.role == Role::scratch) continue;
    std::vector<Span>& spans = covered[m];
    std::sort(spans.begin(), spans.end(),
              [](const Span& a, const Span& b) { return a.begin < b.begin; });
    size_t next = 0;
    for (const auto& [begin, range] : run.memory(m).ranges()) {
      if (!range.written) continue;
      uint64_t at = begin;
      while (next < spans.size() && spans[next].end <= at) ++next;
      for (size_t i = next; i < spans.size() && spans[i].begin <= at && at < range.end; ++i)
        at = std::max(at, spans[i].end);
      if (at < range.end)
        return fail(
            FSCCL_ERR_INTERNAL,
            "plan {}: byte {} of {} on rank {} was written (with {}) but is no part of the result",
            plans[0].name, at, buffer.name, m % plans.size(), range.value.text());
    }
  }
  return success();
}

}  // namespace

Status verify(const std::vector<Plan>& given, const std::vector<Expected>& expected,
              const std::vector<Alias>& aliases) {
  FSCCL_TRY(check_shape(given));
  FSCCL_TRY(check_natives(given));
  std::vector<Plan> plans;
  for (const Plan& plan : given) plans.push_back(unroll(plan));
  for (const Alias& alias : aliases) {
    const auto buffers = static_cast<uint32_t>(plans[0].buffers.size());
    if (alias.rank < 0 || alias.rank >= static_cast<int>(plans.size()) || alias.buffer >= buffers ||
        alias.inside >= buffers)
      return fail(FSCCL_ERR_INTERNAL, "an alias names a buffer that does not exist");
  }
  SymbolicRun run(plans, aliases);
  FSCCL_TRY(run.run());
  FSCCL_TRY(check_signals(plans, run));
  FSCCL_TRY(check_conflicts(plans, run));
  FSCCL_TRY(check_end(plans, run));
  std::vector<std::vector<Span>> covered(run.memories());
  for (const Expected& want : expected) FSCCL_TRY(check_one(plans, run, want, covered));
  return check_strays(plans, run, covered);
}

}  // namespace fsccl
