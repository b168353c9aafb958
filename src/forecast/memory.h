// The most bytes that a rank holds, by owner. Slots are those of the planner that runs in training
// (allocators/pool): the events of a step go through two of its regions, one for slots that ranks
// of a host share and one for a rank's own, until they are planned.
#pragma once
#include <string>
#include <vector>

#include "forecast/machine.h"
#include "forecast/prices.h"
#include "forecast/schedule.h"

namespace fsccl::forecast {

struct Memory {
  uint64_t shards = 0, sharded_gradients = 0, optimizer = 0;
  uint64_t parameter_slots = 0;  // a rank's equal part of the slots that its host shares
  uint64_t gradient_slots = 0;
  // slots of the host, where it shares them; the figure of `fsccl-perf step`
  uint64_t host_slots = 0;
  // planned_bytes has all of these
  uint64_t activations = 0, transports = 0, context = 0;
  uint64_t total() const {
    return shards + sharded_gradients + optimizer + parameter_slots + gradient_slots + activations +
           transports + context;
  }
};

// A step's slots, in bytes after each event. Either may be the larger part.
struct Slots {
  uint64_t parameters = 0, gradients = 0;                 // bytes of the plans
  std::vector<uint64_t> live_parameters, live_gradients;  // after each event
};
Result<Slots> plan_slots_of(const std::vector<Event>& events,
                            const std::vector<const UnitLayout*>& places,
                            const std::vector<bool>& kept, bool by_parameter);

Memory memory_of(const Model& model, const StepConfig& setup, const Machine& machine,
                 const std::vector<const UnitLayout*>& places, const Slots& slots);

// Bytes of activations that are held after the forward pass of units 0 .. u, for each u, and what
// the backward pass of a unit adds.
struct Activations {
  std::vector<double> after;  // by unit
  double most = 0;
};
Activations activations_of(const Model& model, const StepConfig& setup);

}  // namespace fsccl::forecast
