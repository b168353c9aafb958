#include "allocators/placement/known_steps.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace fsccl {
namespace {

constexpr size_t kMostStrangers = 32;
// The most events of a time line that holds every pair of steps.
constexpr size_t kMostLineEvents = size_t{1} << 19;

uint64_t digest_of(const std::vector<StepEvent>& events) {
  uint64_t digest = events.size();
  for (const StepEvent& event : events) {
    const uint64_t kind = uint64_t{event.stream} << 16 | uint64_t{event.stable} << 8 |
                          static_cast<uint64_t>(event.op);
    digest = mix_in_order(mix_in_order(mix_in_order(digest, kind), event.key), event.bytes);
  }
  return digest;
}

}  // namespace

size_t KnownSteps::latest() const {
  return static_cast<size_t>(std::max_element(came_.begin(), came_.end()) - came_.begin());
}

bool KnownSteps::worth_learning(const std::vector<StepEvent>& events) {
  const uint64_t digest = digest_of(events);
  const auto known = std::find(strangers_.begin(), strangers_.end(), digest);
  const bool again = known != strangers_.end();
  if (again) strangers_.erase(known);
  if (!again && strangers_.size() == kMostStrangers) strangers_.erase(strangers_.begin());
  if (again || came_.size() < kMost) return true;
  strangers_.push_back(digest);
  return false;
}

bool KnownSteps::learn(const std::vector<StepEvent>& events, const HeldSlots& held,
                       uint64_t alignment, uint64_t most_bytes) {
  std::vector<Step> all = steps();
  all.push_back({events, ++now_});
  return adopt(std::move(all), held, alignment, most_bytes);
}

bool KnownSteps::plan_again(const HeldSlots& held, uint64_t alignment, uint64_t most_bytes) {
  return adopt(steps(), held, alignment, most_bytes);
}

std::vector<KnownSteps::Step> KnownSteps::steps() const {
  std::vector<Step> result;
  for (size_t i = 0; i < came_.size(); ++i) result.push_back({plan_.steps[i].events, came_[i]});
  return result;
}

bool KnownSteps::adopt(std::vector<Step> steps, const HeldSlots& held, uint64_t alignment,
                       uint64_t most_bytes) {
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.came > b.came; });
  const auto too_many = [&] {
    size_t events = 0;
    for (const Step& step : steps) events += step.events.size();
    return steps.size() > 1 && (steps.size() > kMost || events * steps.size() > kMostLineEvents);
  };
  while (too_many()) steps.pop_back();
  for (; !steps.empty(); steps.pop_back()) {
    std::vector<std::vector<StepEvent>> events;
    for (const Step& step : steps) events.push_back(step.events);
    std::vector<size_t> became;
    JointPlan plan = plan_steps(events, held, alignment, kMostCompared, &became);
    if (plan.bytes > most_bytes) continue;
    came_.assign(plan.steps.size(), 0);
    for (size_t i = 0; i < became.size(); ++i)
      came_[became[i]] = std::max(came_[became[i]], steps[i].came);
    plan_ = std::move(plan);
    return true;
  }
  return false;
}

}  // namespace fsccl
