// The steps that a pool knows, at most eight, and one plan for all of them (JointPlan): for example
// a training step, a step that only accumulates gradients, an evaluation, and the step of a shorter
// last batch. A known step was declared, or has come once. When all places are taken, the step that
// has not come for longest makes room. A step that was not declared gets a place then only if it
// has come once before, not long ago, so that steps that never repeat do not each cost a plan.
// Everything here is a pure function of the calls.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "allocators/placement/step_schedule.h"

namespace fsccl {

class KnownSteps {
 public:
  static constexpr size_t kMost = 8;
  const JointPlan& plan() const { return plan_; }
  bool empty() const { return plan_.steps.empty(); }
  void came(size_t step) { came_[step] = ++now_; }
  size_t latest() const;
  // Returns true if an unknown step should be learned: there is a free place, or the step is among
  // the last 32 that came without getting one.
  bool worth_learning(const std::vector<StepEvent>& events);
  // Learns a step, which counts as the one that came last, and plans all known steps together.
  // Until the plan has at most `most_bytes` bytes, the steps that have not come for longest are
  // forgotten. Returns false and keeps the old plan if even a plan of this step alone is larger.
  // `held` has the slots that are held between steps.
  bool learn(const std::vector<StepEvent>& events, const HeldSlots& held, uint64_t alignment,
             uint64_t most_bytes);
  // Plans the known steps again, because other slots are held between steps than before.
  bool plan_again(const HeldSlots& held, uint64_t alignment, uint64_t most_bytes);

 private:
  struct Step {
    std::vector<StepEvent> events;
    uint64_t came;
  };
  bool adopt(std::vector<Step> steps, const HeldSlots& held, uint64_t alignment,
             uint64_t most_bytes);
  std::vector<Step> steps() const;

  JointPlan plan_;
  std::vector<uint64_t> came_;  // per step of the plan, when it came last
  uint64_t now_ = 0;
  std::vector<uint64_t> strangers_;  // digests of steps that came without a place, the latest last
};

}  // namespace fsccl
