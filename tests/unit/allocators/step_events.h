// Steps of sharded training as events, for the tests of the planner and of the collective region.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "allocators/placement/planner.h"
#include "allocators/placement/step_schedule.h"

namespace fsccl {

// The key of a unit's gradient slot is the number of the unit plus this.
inline constexpr uint64_t kGradient = uint64_t{1} << 32;

struct StepShape {
  std::vector<uint64_t> unit_bytes;
  int prefetch = 1;
  bool gradients = true;
  bool backward = true;
};

// Builds a step. In forward each unit is fetched `prefetch` units ahead and given back after its
// use, except the last one, which is kept. Backward does the same in reverse; a unit's gradient is
// given back after the next unit's backward, when its reduction has finished.
class StepBuilder {
 public:
  explicit StepBuilder(const StepShape& shape)
      : shape_(shape), held_(shape.unit_bytes.size(), false) {}

  std::vector<StepEvent> build() {
    const int units = static_cast<int>(shape_.unit_bytes.size());
    for (int i = 0; i < units; ++i) {
      for (int j = i; j <= i + shape_.prefetch && j < units; ++j) fetch(j);
      if (i + 1 < units || !shape_.backward) drop(i);
    }
    if (!shape_.backward) return events_;
    for (int i = units - 1; i >= 0; --i) {
      for (int j = i; j >= i - shape_.prefetch && j >= 0; --j) fetch(j);
      if (shape_.gradients)
        events_.push_back({.op = StepOp::kTake,
                           .stable = false,
                           .key = kGradient + static_cast<uint64_t>(i),
                           .bytes = bytes(i)});
      drop(i);
      if (shape_.gradients && i + 1 < units) drop_gradient(i + 1);
    }
    if (shape_.gradients) drop_gradient(0);
    return events_;
  }

 private:
  uint64_t bytes(int unit) const { return shape_.unit_bytes[static_cast<size_t>(unit)]; }
  void fetch(int unit) {
    if (held_[static_cast<size_t>(unit)]) return;
    held_[static_cast<size_t>(unit)] = true;
    events_.push_back({.op = StepOp::kTake,
                       .stable = true,
                       .key = static_cast<uint64_t>(unit),
                       .bytes = bytes(unit)});
  }
  void drop(int unit) {
    held_[static_cast<size_t>(unit)] = false;
    events_.push_back({.op = StepOp::kGiveBack, .key = static_cast<uint64_t>(unit)});
  }
  void drop_gradient(int unit) {
    events_.push_back({.op = StepOp::kGiveBack, .key = kGradient + static_cast<uint64_t>(unit)});
  }

  StepShape shape_;
  std::vector<bool> held_;
  std::vector<StepEvent> events_;
};

inline std::vector<StepEvent> step_events(const StepShape& shape) {
  return StepBuilder(shape).build();
}

// Returns the sizes of the units of a model: an embedding, equal layers, and a head.
inline std::vector<uint64_t> transformer(uint64_t embedding, uint64_t layer, int layers,
                                         uint64_t head) {
  std::vector<uint64_t> bytes{embedding};
  bytes.insert(bytes.end(), static_cast<size_t>(layers), layer);
  bytes.push_back(head);
  return bytes;
}

// Returns the requests for the planner of a step that begins and ends with nothing held.
inline std::vector<SlotRequest> requests_of(const std::vector<StepEvent>& events) {
  std::vector<SlotRequest> requests;
  std::map<uint64_t, size_t> open;
  for (size_t i = 0; i < events.size(); ++i) {
    const int64_t at = static_cast<int64_t>(i);
    if (events[i].takes()) {
      open[events[i].key] = requests.size();
      requests.push_back({.bytes = events[i].bytes,
                          .first = at,
                          .last = at,
                          .key = events[i].stable ? static_cast<int64_t>(events[i].key) : -1});
    } else {
      requests[open.at(events[i].key)].last = at;
    }
  }
  return requests;
}

}  // namespace fsccl
