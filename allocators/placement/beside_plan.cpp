// How the collective region places the requests of a step that has left its plan: near the plan, so
// that most later requests find their planned places free, and the pool hardly grows.
#include <algorithm>
#include <utility>

#include "allocators/placement/collective_region.h"

namespace fsccl {
namespace {

// A slot that would be in the plan's way may lie above what was needed so far, by one part in
// kPlanMargin at most.
constexpr uint64_t kPlanMargin = 32;
constexpr uint64_t kStableWeight = 8;  // harm of taking a stable key's place
constexpr size_t kMostExpected = 256;  // expected slots that are looked at

}  // namespace

// Places a request of a deviating step: at the offset that the plan has for the same occurrence of
// the key, if that place is free and large enough; at the last offset of a stable key, if that is
// free; and otherwise where the request is least in the way of the slots that the plan has yet to
// place. The last place may be a little above the bytes that were needed so far (kPlanMargin).
std::optional<uint64_t> CollectiveRegion::place_beside_plan(const Event& event) {
  const StepSchedule& step = known_.plan().steps[current_];
  std::optional<uint64_t> planned;
  std::optional<uint32_t> at;
  const auto takes = step.takes.find(event.key);
  const uint32_t nth = occurrence_[event.key];
  if (takes != step.takes.end() && nth < takes->second.size()) {
    at = takes->second[nth];
    reached_ = std::max(reached_, *at);
    if (step.events[*at].bytes >= event.bytes) planned = step.offset[*at];
  }
  std::optional<uint64_t> last;
  if (event.stable && last_offset_.contains(event.key)) last = last_offset_.at(event.key);
  // Within a step a stable key stays where it is, even if that is not where the plan has it.
  std::optional<uint64_t> first = planned, second = last;
  if (nth > 0 && last) std::swap(first, second);
  std::optional<uint64_t> offset;
  for (const std::optional<uint64_t>& wanted : {first, second}) {
    if (!offset && wanted && region_.take(*wanted, event.bytes)) offset = wanted;
  }
  if (!offset) {
    const uint64_t needed = std::max({peak_, live_ + event.bytes, plan_bytes()});
    const uint64_t limit =
        std::min(std::max(most_extent_, needed + needed / kPlanMargin), addresses_);
    const auto homes = known_.plan().homes.find(event.bytes);
    const std::optional<uint64_t> place =
        least_harm(region_, event.bytes, most_extent_, limit,
                   homes == known_.plan().homes.end() ? std::vector<uint64_t>() : homes->second,
                   expected_beside(event, at));
    if (place && region_.take(*place, event.bytes)) offset = place;
  }
  if (!offset) offset = region_.alloc(event.bytes, kAlignment);
  if (!offset) return std::nullopt;
  ++(planned == offset ? hits_ : misses_);
  return offset;
}

// Returns the slots that the plan will place while the request lives: until the plan gives it back,
// or for the rest of the step. A stable key needs the same place in all its occurrences.
std::vector<ExpectedSlot> CollectiveRegion::expected_beside(const Event& event,
                                                            std::optional<uint32_t> at) const {
  std::vector<std::pair<uint32_t, uint32_t>> spans;
  const StepSchedule& step = known_.plan().steps[current_];
  const auto count = static_cast<uint32_t>(step.events.size());
  if (!at) {
    spans.emplace_back(reached_, count);
  } else if (event.stable) {
    for (const uint32_t take : step.takes.at(event.key))
      spans.emplace_back(std::max(take, *at), step.until[take]);
  } else {
    spans.emplace_back(*at, step.until[*at]);
  }
  std::vector<ExpectedSlot> expected;
  for (const auto& [from, to] : spans) {
    for (uint32_t i = from; i < to && expected.size() < kMostExpected; ++i) {
      const Event& other = step.events[i];
      if (!other.takes() || other.key == event.key || held_.contains(other.key)) continue;
      expected.push_back({.begin = step.offset[i],
                          .end = step.offset[i] + other.bytes,
                          .weight = other.stable ? kStableWeight : 1});
    }
  }
  return expected;
}

// Notes that the step leaves its plan here, and records its events so far, which were the plan's.
void CollectiveRegion::deviate() {
  following_ = false;
  events_.clear();
  for (size_t i = 0; i < next_; ++i) note(known_.plan().steps[current_].events[i]);
}

}  // namespace fsccl
