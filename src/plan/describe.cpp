#include "plan/describe.h"

#include <fmt/format.h>

namespace fsccl {
namespace {

std::string describe(const Plan& plan, const Operand& operand) {
  const std::string name = operand.buffer < plan.buffers.size()
                               ? plan.buffers[operand.buffer].name
                               : fmt::format("unknown buffer {}", operand.buffer);
  if (operand.rank == plan.rank) return fmt::format("{}[{}]", name, operand.offset);
  return fmt::format("{}[{}] of rank {}", name, operand.offset, operand.rank);
}

const char* role_name(Role role) {
  switch (role) {
    case Role::input:
      return "input";
    case Role::output:
      return "output";
    case Role::inout:
      return "inout";
    case Role::scratch:
      return "scratch";
  }
  return "unknown role";
}

std::string describe_native(const Plan& plan, const Step& step) {
  if (step.tick >= plan.natives.size())
    return fmt::format("native step {}, of which the plan knows nothing", step.tick);
  const Native& native = plan.natives[step.tick];
  const auto elements = [](const std::vector<Native::Part>& parts) {
    uint64_t count = 0;
    for (const Native::Part& part : parts) count += part.count;
    return count;
  };
  const uint64_t received = native.reduces && !native.receives.empty()
                                ? native.receives.front().count
                                : elements(native.receives);
  return fmt::format("native by {}: {} {} x {} to {} ranks, {} x {} {}",
                     kNativeNames[static_cast<size_t>(native.by)],
                     native.reduces ? "reduce" : "move", elements(native.sends),
                     dtype_name(step.from), native.sends.size(), received, dtype_name(step.to),
                     native.receives.empty() ? "received"
                     : !native.reduces       ? fmt::format("from {}", native.receives.size())
                     : native.in_rank_order  ? "reduced in rank order"
                                             : "reduced in any order");
}

}  // namespace

std::string describe(const Plan& plan, const Step& step) {
  const char* from = dtype_name(step.from);
  const char* to = dtype_name(step.to);
  switch (step.kind) {
    case StepKind::copy:
      return fmt::format("copy {} x {}: {} <- {}", step.count, from, describe(plan, step.dst),
                         describe(plan, step.src));
    case StepKind::cast:
      return fmt::format("cast {} x {}: {} <- {} {}", step.count, to, describe(plan, step.dst),
                         from, describe(plan, step.src));
    case StepKind::reduce: {
      const Operand everywhere{step.src.buffer, plan.rank, step.src.offset};
      return fmt::format("reduce {} x {}: {}{} <- {} {} of all ranks", step.count, to,
                         describe(plan, step.dst), step.to_all ? " of all ranks" : "", from,
                         describe(plan, everywhere));
    }
    case StepKind::reduce_local:
      return fmt::format("reduce {} x {}: {} <- {} {} and {} more, {} bytes apart", step.count, to,
                         describe(plan, step.dst), from, describe(plan, step.src), plan.ranks - 1,
                         step.stride);
    case StepKind::put:
      return fmt::format("put {} x {} for rank {}: {} <- {}", step.count, from, step.peer,
                         describe(plan, step.dst), describe(plan, step.src));
    case StepKind::code:
      return fmt::format("code {} x {}: {} <- {}", step.count, from, describe(plan, step.dst),
                         describe(plan, step.src));
    case StepKind::signal:
      if (step.peer != kAllPeers)
        return fmt::format("signal tick {} to rank {}", step.tick, step.peer);
      if (step.count == 0)
        return fmt::format("signal tick {}{}", step.tick, step.optional ? ", now and then" : "");
      return fmt::format("signal tick {} with {} bytes of {}", step.tick, step.count,
                         describe(plan, step.src));
    case StepKind::wait: {
      const std::string who = step.peer == kAllPeers ? "all" : fmt::format("rank {}", step.peer);
      if (step.count == 0) return fmt::format("wait for tick {} of {}", step.tick, who);
      return fmt::format("wait for tick {} of {}: {} <- its {} bytes", step.tick, who,
                         describe(plan, step.dst), step.count);
    }
    case StepKind::choose:
      return "go on if all buffers can be touched";
    case StepKind::native:
      return describe_native(plan, step);
    case StepKind::divide:
      return fmt::format("divide {} x {} by {}: {}", step.count, to, plan.ranks,
                         describe(plan, step.dst));
    case StepKind::wait_released:
      return fmt::format("wait until all have released {}", describe(plan, step.dst));
  }
  return fmt::format("unknown step {}", static_cast<int>(step.kind));
}

std::string describe(const Plan& plan) {
  std::string text = fmt::format(
      "{}: rank {} of {}, {} ticks{}{}\n", plan.name, plan.rank, plan.ranks, plan.ticks,
      plan.rounds > 1 ? fmt::format(" in each of {} rounds of {} bytes", plan.rounds, plan.chunk)
                      : "",
      plan.mirrored ? ", slots are mirrored" : "");
  for (const Buffer& buffer : plan.buffers) {
    if (buffer.bytes == 0) continue;
    text += fmt::format("  {}: {}, {} bytes{}{}{}{}{}\n", buffer.name, role_name(buffer.role),
                        buffer.bytes, buffer.shared ? ", shared" : "",
                        buffer.symmetric ? ", symmetric" : "",
                        buffer.address_exchanged ? ", address exchanged" : "",
                        buffer.address_in_signal ? ", address in signal" : "",
                        buffer.slot      ? fmt::format(", slot of tick {}", buffer.slot_tick)
                        : buffer.guarded ? ", guarded"
                                         : "");
  }
  for (size_t i = 0; i < plan.steps.size(); ++i)
    text += fmt::format("  {}. {}\n", i, describe(plan, plan.steps[i]));
  return text;
}

}  // namespace fsccl
