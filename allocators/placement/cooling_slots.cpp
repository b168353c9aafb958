#include "allocators/placement/cooling_slots.h"

#include <algorithm>

namespace fsccl {

void CoolingSlots::open(Region& region, const StreamClock& known, uint64_t begin, uint64_t end) {
  size_t kept = 0;
  for (const Slot& slot : slots_) {
    const bool touches = slot.begin < end && begin < slot.end;
    if (touches || slot.steps > 1 || covers(known, slot.done)) {
      region.free(slot.begin);
      open_.push_back(slot);
    } else {
      slots_[kept++] = slot;
    }
  }
  slots_.resize(kept);
}

StreamClock CoolingSlots::close(Region& region, const StreamClock& known_to_all, uint64_t begin,
                                uint64_t end) {
  StreamClock done{};
  for (const Slot& slot : open_) {
    if (slot.begin < end && begin < slot.end)
      for (size_t s = 0; s < kMostStreams; ++s) done[s] = std::max(done[s], slot.done[s]);
    if (covers(known_to_all, slot.done)) continue;
    for (Slot rest : {Slot{slot.begin, std::min(slot.end, begin), slot.done, slot.steps},
                      Slot{std::max(slot.begin, end), slot.end, slot.done, slot.steps}}) {
      if (rest.begin >= rest.end) continue;
      region.take(rest.begin, rest.end - rest.begin);
      slots_.push_back(rest);
    }
  }
  open_.clear();
  return done;
}

bool CoolingSlots::touches(uint64_t begin, uint64_t end) const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [&](const Slot& slot) { return slot.begin < end && begin < slot.end; });
}

void CoolingSlots::end_step() {
  for (Slot& slot : slots_) slot.steps = std::min(slot.steps + 1, 2);
}

void CoolingSlots::append_differences(const StreamOrder& order,
                                      std::vector<uint64_t>* differences) const {
  for (const Slot& slot : slots_) {
    differences->insert(differences->end(), {slot.begin, slot.end});
    order.append_lags(slot.done, differences);
  }
}

}  // namespace fsccl
