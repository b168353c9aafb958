// Checks a plan by means that are on purpose nothing like the planner's: walks through the step
// event by event, and compares all pairs of slots that are live at an event.
#include <cstddef>
#include <map>

#include "allocators/placement/planner.h"

namespace fsccl {
namespace {

bool live_at(const SlotRequest& request, int64_t event) {
  if (request.last == SlotRequest::kForever) return true;
  if (request.last >= request.first) return request.first <= event && event <= request.last;
  return event >= request.first || event <= request.last;
}

bool requests_hold(const std::vector<SlotRequest>& requests, const SlotPlan& plan,
                   uint64_t alignment) {
  std::map<int64_t, uint64_t> offset_of_key;
  for (size_t i = 0; i < requests.size(); ++i) {
    const uint64_t offset = plan.offset[i];
    const bool aligned = offset % alignment == 0 || offset == requests[i].pinned;
    const bool inside = offset <= plan.bytes && requests[i].bytes <= plan.bytes - offset;
    const bool at_pin =
        requests[i].pinned == SlotRequest::kAnywhere || requests[i].pinned == offset;
    const bool with_key = requests[i].key < 0 ||
                          offset_of_key.emplace(requests[i].key, offset).first->second == offset;
    if (!aligned || !inside || !at_pin || !with_key) return false;
  }
  return true;
}

}  // namespace

bool plan_valid(const std::vector<SlotRequest>& requests, const SlotPlan& plan, int64_t events,
                uint64_t alignment) {
  if (plan.offset.size() != requests.size() || !requests_hold(requests, plan, alignment))
    return false;
  std::vector<size_t> live;
  for (int64_t event = 0; event < events; ++event) {
    live.clear();
    for (size_t i = 0; i < requests.size(); ++i) {
      if (requests[i].bytes > 0 && live_at(requests[i], event)) live.push_back(i);
    }
    for (const size_t a : live) {
      for (const size_t b : live) {
        const bool one_slot = requests[a].key >= 0 && requests[a].key == requests[b].key;
        if (a < b && !one_slot && plan.offset[a] < plan.offset[b] + requests[b].bytes &&
            plan.offset[b] < plan.offset[a] + requests[a].bytes)
          return false;
      }
    }
  }
  return true;
}

}  // namespace fsccl
