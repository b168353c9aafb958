// The largest memory that a rank holds, by owner. The slots are placed by the planner that runs in
// training (allocators/pool): the events of a step take and give back slots in two of its regions,
// until these are planned. One region has the slots that the ranks of a host share, the other has a
// rank's own.
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
  // the parameter slots that the ranks of a host share, all of which `fsccl-perf step` counts in
  // planned_bytes
  uint64_t host_slots = 0;
  uint64_t activations = 0, transports = 0, context = 0;
  uint64_t total() const {
    return shards + sharded_gradients + optimizer + parameter_slots + gradient_slots + activations +
           transports + context;
  }
};

// The slots of a step. `parameters` and `gradients` are the bytes of the two plans.
struct Slots {
  uint64_t parameters = 0, gradients = 0;
  std::vector<uint64_t> live_parameters, live_gradients;  // bytes in use after each event
};
Result<Slots> plan_slots_of(const std::vector<Event>& events,
                            const std::vector<const UnitLayout*>& places,
                            const std::vector<bool>& kept, bool by_parameter);

Memory memory_of(const Model& model, const StepConfig& setup, const Machine& machine,
                 const std::vector<const UnitLayout*>& places, const Slots& slots);

// The bytes of activations of a rank. A unit before the first one with a parameter that is not
// frozen has no backward pass, so it leaves none.
struct Activations {
  std::vector<double> after;  // held after the forward passes of units 0 to u, by unit
  std::vector<double> again;  // held in addition while the backward pass of the unit runs
  double loss = 0;            // held in addition when the backward pass begins
  double most = 0;            // the most that are held at any time
};
Activations activations_of(const Model& model, const StepConfig& setup);

}  // namespace fsccl::forecast
