// The order of what happens in a pass over a micro-batch: the same as fsccl-perf step's
// (perf/step_schedule.h, which a test holds it against), with the computation between. Forward:
// every unit is gathered, used and given back; one, the root, stays. Backward, in reverse order: a
// unit is gathered again, used, its gradients written, its parameters given back, its gradients
// reduced. `prefetch` units are gathered before the present one is used; with 0 the next one is
// gathered when the present one is given back. By parameter, backward gives parameters back and
// reduces gradients one by one, and the root's embedding and head come apart.
#pragma once
#include <vector>

#include "forecast/model.h"

namespace fsccl::forecast {

enum class EventKind : uint8_t {
  gather,
  wait,
  compute,    // the unit's computation, forward or backward
  gradients,  // a slot for them is taken; `param` where it is one parameter's
  give_back,  // the slots of parameters that are still held; `param` where it is one parameter's
  reduce,     // a slot of gradients is reduced and given back
};

struct Event {
  static constexpr size_t kAll = SIZE_MAX;
  EventKind kind{};
  size_t unit = 0;
  bool backward = false;
  size_t param = kAll;
};

std::vector<Event> step_events(const Model& model, int prefetch, bool by_parameter);

// Which units keep their slots from the forward to the backward pass: as many as fit, in order, but
// for the root.
std::vector<bool> kept_units(const Model& model, const std::vector<uint64_t>& slot_bytes,
                             uint64_t keep_bytes);

}  // namespace fsccl::forecast
