#include "engine/small_call.h"

#include <algorithm>
#include <tuple>

namespace fsccl {

bool small_enough(const Plan& plan) {
  const auto given = [&](const Operand& operand) {
    return !plan.buffers[operand.buffer].slot && operand.rank == plan.rank;
  };
  const auto touched = [&](const Operand& operand) {
    return plan.buffers[operand.buffer].slot || given(operand);
  };
  const auto read = [&](const Operand& operand) {
    return touched(operand) || plan.buffers[operand.buffer].address_in_signal;
  };
  const auto small = [&](const Step& step) {
    const bool few_bytes = step.count * dtype_size(step.from) <= SmallCall::kBytes;
    switch (step.kind) {
      case StepKind::signal:
        return step.count == 0 || given(step.src);
      case StepKind::wait:
        return step.count == 0 || given(step.dst);
      case StepKind::reduce_local:
      case StepKind::choose:
        return true;
      case StepKind::copy:
        return read(step.src) && touched(step.dst) && few_bytes;
      case StepKind::put:
        return touched(step.src) && few_bytes;
      case StepKind::reduce:
        return read(step.src) && given(step.own) && touched(step.dst) && !step.to_all && few_bytes;
      default:
        return false;
    }
  };
  const auto slots = static_cast<size_t>(
      std::count_if(plan.buffers.begin(), plan.buffers.end(), [](auto& b) { return b.slot; }));
  return plan.ticks > 0 && plan.rounds == 1 && !plan.relayed &&
         plan.buffers.size() - slots <= std::tuple_size_v<decltype(SmallCall::buffers)> &&
         std::all_of(plan.steps.begin(), plan.steps.end(), small);
}

}  // namespace fsccl
