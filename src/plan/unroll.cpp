#include "plan/unroll.h"

#include <algorithm>

namespace fsccl {
namespace {

struct Unroller {
  const Plan& plan;
  Plan out;
  uint32_t first_slot = 0;  // of the kWindow buffers that stand for slots

  explicit Unroller(const Plan& given) : plan(given), out(given) {
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
    for (int i = 0; i < kWindow; i++) {
      Buffer slot;
      slot.name = "slot of tick " + std::to_string(i) + " mod " + std::to_string(kWindow);
      slot.role = Role::scratch;
      slot.bytes = slot_bytes;
      slot.slot = slot.tabled = true;
      out.buffers.push_back(slot);
    }
  }

  // Bytes a place advances per element before it; slots do not.
  Place moved(Place place, uint64_t elements, fsccl_dtype_t dtype, int first_tick) const {
    if (place.buffer >= plan.buffers.size()) {  // for verify() to find
      place.buffer += static_cast<uint32_t>(out.buffers.size() - plan.buffers.size());
      return place;
    }
    const Buffer& buffer = plan.buffers[place.buffer];
    if (buffer.slot)
      place.buffer = first_slot + static_cast<uint32_t>((first_tick + buffer.slot_tick) % kWindow);
    else
      place.offset += elements * dtype_size(dtype);
    return place;
  }

  void round(uint32_t r) {
    const int first_tick = static_cast<int>(r) * plan.ticks;
    // The engine's own wait: whoever used a slot of this round, or a line, before has left that round.
    const int needed = first_tick + plan.ticks - kWindow;
    if (needed > 0 && plan.ranks > 1) {
      Step wait;
      wait.kind = StepKind::wait;
      wait.tick = static_cast<uint16_t>((needed + plan.ticks - 1) / plan.ticks * plan.ticks);
      out.steps.push_back(wait);
    }
    for (Step step : plan.steps) {
      if (step.kind == StepKind::signal || step.kind == StepKind::wait) {
        step.tick = static_cast<uint16_t>(step.tick + first_tick);
      } else if (step.kind != StepKind::choose && step.kind != StepKind::wait_released) {
        const uint64_t each = plan.chunk ? plan.chunk / dtype_size(step.from) : step.count, begin = each * r;
        if (begin >= step.count) continue;
        step.count = std::min(each, step.count - begin);
        step.dst = moved(step.dst, begin, step.to, first_tick);
        step.src = moved(step.src, begin, step.from, first_tick);
        step.own = moved(step.own, begin, step.from, first_tick);
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
