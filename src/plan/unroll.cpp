#include "plan/unroll.h"

#include <algorithm>

namespace fsccl {
namespace {

struct Unroller {
  const Plan& plan;
  Plan out;
  // The number of views of a slot: one for each rank that sees it, or one if all ranks see the
  // same.
  const uint32_t views;
  uint32_t first_slot = 0;  // first of the kTickWindow * views buffers that stand for slots
  LastHeard heard{};
  std::vector<uint16_t> heard_at;  // first ticks of the rounds in which no signal is elided

  explicit Unroller(const Plan& given)
      : plan(given), out(given), views(given.mirrored ? static_cast<uint32_t>(given.ranks) : 1) {
    out.steps.clear();
    out.ticks = plan.ticks * static_cast<int>(plan.rounds);
    out.rounds = 1;
    out.chunk = 0;
    uint64_t slot_bytes = 0;
    for (Buffer& buffer : out.buffers) {
      if (!buffer.slot) continue;
      slot_bytes = std::max(slot_bytes, buffer.bytes);
      buffer.bytes = 0;
    }
    first_slot = static_cast<uint32_t>(out.buffers.size());
    if (!slot_bytes) return;
    for (uint32_t i = 0; i < kTickWindow * views; i++) {
      const uint32_t tick = i / views, view = i % views;
      Buffer slot;
      slot.name = "slot of tick " + std::to_string(tick) + " mod " + std::to_string(kTickWindow);
      if (plan.mirrored) slot.name += " for rank " + std::to_string(view);
      slot.role = Role::scratch;
      slot.bytes = slot_bytes;
      slot.slot = true;
      // No peer sees the owner's own view of a mirrored slot.
      slot.address_exchanged = !plan.mirrored || static_cast<int>(view) != plan.rank;
      out.buffers.push_back(slot);
    }
  }

  // Returns the operand of a round that begins after `elements` elements. Offsets in slots do not
  // change. `viewer` is the rank that sees the slot.
  Operand moved(Operand operand, uint64_t elements, fsccl_dtype_t dtype, int first_tick,
                int viewer) const {
    if (operand.buffer >= plan.buffers.size()) {  // verify() will refuse it
      operand.buffer += static_cast<uint32_t>(out.buffers.size() - plan.buffers.size());
      return operand;
    }
    const Buffer& buffer = plan.buffers[operand.buffer];
    if (buffer.slot)
      operand.buffer =
          first_slot +
          static_cast<uint32_t>((first_tick + buffer.slot_tick) % kTickWindow) * views +
          (plan.mirrored ? static_cast<uint32_t>(viewer) : 0);
    else
      operand.offset += elements * dtype_size(dtype);
    return operand;
  }

  void round(uint32_t r) {
    const int first_tick = static_cast<int>(r) * plan.ticks;
    // The engine itself waits until each rank that used a slot or a line of this round before has
    // left that earlier round.
    const int needed = first_tick + plan.ticks - kTickWindow;
    const bool quiet = heard.quiet(plan, static_cast<uint32_t>(first_tick));
    if (needed > 0 && plan.ranks > 1) {
      Step wait;
      wait.kind = StepKind::wait;
      wait.tick = *std::lower_bound(heard_at.begin(), heard_at.end(), needed);
      out.steps.push_back(wait);
    }
    if (!quiet) {
      heard.tick = static_cast<uint32_t>(first_tick);
      heard_at.push_back(static_cast<uint16_t>(first_tick));
    }
    for (Step step : plan.steps) {
      if (step.optional && quiet) continue;
      if (step.kind == StepKind::signal || step.kind == StepKind::wait) {
        step.tick = static_cast<uint16_t>(step.tick + first_tick);
      } else if (step.kind != StepKind::choose && step.kind != StepKind::wait_released &&
                 step.kind != StepKind::native) {
        const uint64_t each = plan.chunk ? plan.chunk / dtype_size(step.from) : step.count,
                       begin = each * r;
        if (begin >= step.count) continue;
        step.count = std::min(each, step.count - begin);
        const bool puts = step.kind == StepKind::put;
        if (puts && step.dst.buffer < plan.buffers.size())
          step.tick = static_cast<uint16_t>(first_tick + plan.buffers[step.dst.buffer].slot_tick);
        step.dst = moved(step.dst, begin, step.to, first_tick, puts ? step.peer : plan.rank);
        step.src = moved(step.src, begin, step.from, first_tick, plan.rank);
        step.own = moved(step.own, begin, step.from, first_tick, plan.rank);
      }
      out.steps.push_back(step);
    }
  }
};

}  // namespace

Plan unroll(const Plan& plan) {
  Unroller unroller(plan);
  for (uint32_t r = 0; r < plan.rounds; r++) unroller.round(r);
  return std::move(unroller.out);
}

}  // namespace fsccl
