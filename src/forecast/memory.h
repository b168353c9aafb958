// The largest memory that a rank holds, by owner. The slots are placed by the planner that runs in
// training (allocators/placement): the events of a step take and give back slots in two of its
// regions, until these are planned. One region has the slots that the ranks of a host share, the
// other has a rank's own.
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
  // The most that is held at one time. It is less than the total, because owners have their maxima
  // at different times. A pool's slots count as held for the whole step.
  uint64_t at_once = 0;
  // Returns the sum of the owners' maxima, which is what a rank needs: an allocator seldom gives
  // what one owner has freed to another owner.
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

// The bytes of activations of a rank, by unit. A unit before the first one with a parameter that is
// not frozen has no backward pass, so it keeps none.
struct Activations {
  std::vector<double> kept;  // from the unit's forward pass to its backward pass
  // Held in addition while the backward pass of the unit runs: activations that are computed again,
  // and the largest gradient of one.
  std::vector<double> again, gradient;
  double loss = 0;  // held in addition when the backward pass begins
};
Activations activations_of(const Model& model, const StepConfig& setup);

// MemoryPoint tells what a rank holds at a moment of the first micro-batch, apart from what stays
// for the whole step.
struct MemoryPoint {
  size_t event = 0;
  bool before = false;  // while the event runs, and not after it
  uint64_t parameter_slots = 0, gradient_slots = 0, sharded_gradients = 0;
  double activations = 0;
};
std::vector<MemoryPoint> memory_points(const Model& model, const StepConfig& setup,
                                       const Machine& machine, const std::vector<Event>& events,
                                       const std::vector<const UnitLayout*>& places,
                                       const std::vector<bool>& kept, const Slots& slots);

Memory memory_of(const StepConfig& setup, const Machine& machine,
                 const std::vector<const UnitLayout*>& places, const Slots& slots,
                 const std::vector<MemoryPoint>& points);

}  // namespace fsccl::forecast
