// Finds offsets for the slots of a step whose events are known, by interval packing. A request has
// a size, a first and a last event on the time line of the step. The line repeats, so an interval
// may run past the end of the step into the next one (last < first). Requests with the same `key`
// >= 0 get one offset for all their occurrences (a unit's parameters need this, because autograd
// keeps the views of forward). Two requests may share bytes only if every use of one is over before
// the other begins, both in the order of the program and by the events that order streams. The
// planner is a pure function, and an independent check verifies its plans (plan_valid()).
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/stream_order.h"

namespace fsccl {

// The place of a request in the order of the streams' work. If all clocks are zero, only the order
// of the program counts.
struct SlotOrder {
  StreamClock ready{};  // the work that is complete before its first use
  // The work that is complete before the first use of its next occurrence, a step later, in the
  // count of this step.
  StreamClock ready_next{};
  StreamClock done{};  // its last use on each stream
};

struct SlotRequest {
  static constexpr int64_t kForever = INT64_MAX;
  static constexpr uint64_t kAnywhere = UINT64_MAX;
  uint64_t bytes = 0;
  int64_t first = 0;  // event at which it is taken
  // The event at which it is given back; it is live on [first, last]. If last < first, that event
  // is in the next step. kForever: it is always live.
  int64_t last = 0;
  int64_t key = -1;  // requests with an equal key share an offset
  uint64_t pinned =
      // The offset that it has already and must keep. Requests pinned to overlapping bytes must not
      // meet in time.
      kAnywhere;
  SlotOrder order = {};
  // True if all its occurrences in all steps share one offset. Only requests that agree in this can
  // be alike in a tiling (reduction.h).
  bool stable = false;
};
struct SlotPlan {
  std::vector<uint64_t> offset;  // per request
  uint64_t bytes = 0;            // extent
  uint64_t bound = 0;            // most bytes live at any event
  // The most bytes found of requests of which no two may overlap. No plan can be smaller. At least
  // `bound`.
  uint64_t clique_bound = 0;
};
// The most pairs of occurrences that are compared to make the graph of conflicts. A step that would
// need more is planned without the graph.
inline constexpr int64_t kMostCompared = int64_t{1} << 25;
// `events` is the number of events of the step. The effort is limited by counts and not by time, so
// that every rank finds the same plan.
SlotPlan plan_slots(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                    int64_t most_compared = kMostCompared);
// Returns true if no two requests overlap both in time (cyclic) and in bytes, equal keys have equal
// offsets, pinned requests lie where they must, the others are aligned, and all are within the
// extent.
bool plan_valid(const std::vector<SlotRequest>& requests, const SlotPlan& plan, int64_t events,
                uint64_t alignment);

}  // namespace fsccl
