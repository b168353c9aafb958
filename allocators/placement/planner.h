// Offsets for a step whose order is known: interval packing. Each request is a (bytes, first event,
// last event) on the step's time line, which repeats: an interval may run past the end of the step
// into the next one (last < first). Requests with the same `key` >= 0 get one offset for all their
// occurrences (a unit's parameters: autograd keeps the forward view). Two requests may share bytes
// only where every use of one is over before the other begins: in the order of the program, and by
// the edges between streams. Pure and deterministic; checked by an independent verifier
// (plan_valid).
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/stream_order.h"

namespace fsccl {

// The place of a request among the work of the streams. All zero: the order of the program is the
// only one.
struct SlotOrder {
  StreamClock ready{};  // complete before its first use
  // complete before the first use of its next occurrence, a step later, counted from this step
  StreamClock ready_next{};
  StreamClock done{};  // its last use on each stream
};

struct SlotRequest {
  static constexpr int64_t kForever = INT64_MAX;
  static constexpr uint64_t kAnywhere = UINT64_MAX;
  uint64_t bytes = 0;
  int64_t first = 0;  // event at which it is taken
  // event at which it is given back (it is live on [first, last]); < first: in the next step; ==
  // kForever: never, and always live
  int64_t last = 0;
  int64_t key = -1;  // requests with an equal key share an offset
  uint64_t pinned =
      // the offset it has already and must keep; requests pinned to overlapping bytes must not meet
      // in time
      kAnywhere;
  SlotOrder order = {};
  // true if all occurrences share one offset; kinds that differ are not alike
  bool stable = false;
};
struct SlotPlan {
  std::vector<uint64_t> offset;  // per request
  uint64_t bytes = 0;            // extent
  uint64_t bound = 0;            // most bytes live at any event
  // most bytes found that must not overlap in pairs: no plan can be smaller; >= bound
  uint64_t clique_bound = 0;
};
// Pairs of occurrences that are compared for the graph of conflicts; a step that has more to
// compare is planned without it.
inline constexpr int64_t kMostCompared = int64_t{1} << 25;
// `events`: number of events in the step. The effort is counted, never timed, so that every rank
// finds the same plan.
SlotPlan plan_slots(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                    int64_t most_compared = kMostCompared);
// Returns true if no two requests overlap in both time (cyclic) and bytes, equal keys have equal
// offsets, and pins, alignment and extent hold.
bool plan_valid(const std::vector<SlotRequest>& requests, const SlotPlan& plan, int64_t events,
                uint64_t alignment);

}  // namespace fsccl
