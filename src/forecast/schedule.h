// The order of the events in a pass over a micro-batch. It is that of `fsccl-perf step`
// (perf/step_schedule.h; a test compares the two), with the computation in between. In the forward
// pass, every unit is gathered, used and given back, except the root, which stays. In the backward
// pass, in reverse order, a unit is gathered again and used, its gradients are written, its
// parameters are given back, and its gradients are reduced. The root's operations are those of the
// model's head, so they come between the layers of the two passes: looking up embeddings takes
// none. `prefetch` units are gathered before the present one is used; with 0, the next one is
// gathered when the present one is given back. By parameter, the backward pass gives parameters
// back and reduces gradients one by one, the root's embedding and head are handled apart, and
// gathers for the backward pass are issued in the forward pass, too, once the unit was given back
// there. A model without a root has a layer as its first unit: it is computed as a layer, but by
// parameter as a root. Frozen parameters have neither gradients nor a reduction, and the backward
// pass ends at the first unit with one that is not frozen.
#pragma once
#include <vector>

#include "forecast/model.h"

namespace fsccl::forecast {

enum class EventKind : uint8_t {
  gather,
  wait,
  compute,    // the unit's computation, forward or backward
  gradients,  // a slot for gradients is taken; `param` is set if it is that of one parameter
  give_back,  // slots of parameters are given back: all that are still held, or that of `param`
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

// Returns which units keep their slots from the forward to the backward pass. The units of the
// backward pass are taken in order, each if its slot still fits into `keep_bytes`. The root is not
// among them.
std::vector<bool> kept_units(const Model& model, const std::vector<uint64_t>& slot_bytes,
                             uint64_t keep_bytes);

}  // namespace fsccl::forecast
