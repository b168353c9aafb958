// The steps that a pool knows, at most eight, and one plan for all of them (JointPlan): a training
// step, one that accumulates, an evaluation, a shorter last batch. They were declared, or came
// once. When all places are taken, the one that did not come for longest goes, and a step that was
// not declared gets a place only when it has come before not long ago, so that steps that never
// repeat cost no plan each. A pure function of its calls.
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
  // A step that came, and is none of these: should it be learned?
  bool worth_learning(const std::vector<StepEvent>& events);
  // Knows this step as well, that of the latest. False, and nothing has changed, when a plan for it
  // alone is larger than `most_bytes`; else steps are forgotten until one is not. `held`: between
  // steps.
  bool learn(const std::vector<StepEvent>& events, const HeldSlots& held, uint64_t alignment,
             uint64_t most_bytes);
  // Other slots than before are held between steps.
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
  std::vector<uint64_t> came_;  // per step of the plan
  uint64_t now_ = 0;
  std::vector<uint64_t> strangers_;  // digests of steps that came without a place, the latest last
};

}  // namespace fsccl
