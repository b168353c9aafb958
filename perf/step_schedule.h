// The order of events of an FSDP step, and the two bounds that follow from it. These are pure
// functions of the model and the options.
//
// In forward, every unit is gathered, used and given back, except for one, the root, which stays.
// Backward goes through the units in reverse order. A unit is gathered again (except for the root,
// which is still there), its gradients are written, its parameters are given back, and its
// gradients are reduced. With prefetch 1 the gather of the next unit is issued before the present
// unit is given back, so two units are there at once.
//
// By parameter (`make_step_by_parameter`), backward goes through the parameters of a unit from the
// last to the first. A parameter's gradient is written, and the parameter is given back; the
// gradient is reduced when the next one has been written. The root does not stay. Its first
// parameter is the embedding, which begins the forward pass. The root is gathered again for its
// other parameters (norm and head), which end the forward pass and begin the backward pass. The
// embedding is given back at once then if the root has a head of its own, that is, another
// parameter of the same size. The gradient of the embedding comes at the end.
//
// The minimum of bytes is what all ranks together read and write in one step. E is the number of
// elements of a unit, n that of ranks; M, W, R and G are the bytes of an element of shards (4), of
// the wire type, of gradients, and of sharded gradients (4):
//   gather into a shared slot     M E read once, W E written once per host
//   gather into private slots     M E + (n-1) W E read, n W E written
//   gather of a kept unit         0 until its shards change
//   reduction                     n R E read (each rank's gradient once), G E written
// The sum has one forward gather of every unit, one backward gather of every unit except for the
// root and the kept ones, and one reduction of every unit.
//
// The live bound is the most bytes of slots that are live at once in this order, over all ranks. A
// shared slot counts once per host; a private slot and a gradient slot count once per rank. The
// slot of a kept unit is live from its first gather on. No placement can need less.
#pragma once
#include <cstdint>
#include <vector>

#include "model.h"

namespace fsccl::perf {

enum class EventKind {
  kGather,
  kWait,
  kGradients,
  kReshard,
  kReduce,
  kGradient,
  kRelease,
  kReduceOne
};
struct StepEvent {
  EventKind kind;
  size_t unit;
  bool backward;
  size_t param = 0;  // the parameter that the last three kinds concern
};
std::vector<StepEvent> make_step(size_t units, int prefetch, size_t stays = 0);
std::vector<StepEvent> make_step_by_parameter(const Model& model, int prefetch);

struct StepShape {
  uint64_t wire_bytes = 2;      // per element
  uint64_t gradient_bytes = 2;  // per element
  bool flat = false;
  bool shared = true;
  bool gradient_slots = true;
  bool by_parameter = false;
  int ranks = 1;
  int hosts = 1;
  std::vector<bool> kept;  // per unit
};

// Returns the bytes of a unit's slot whose elements have `element_bytes` bytes. Unless the layout
// is flat, each parameter is aligned to 64 bytes.
uint64_t slot_bytes(const ModelUnit& unit, bool flat, uint64_t element_bytes);
// Returns the bytes of a parameter's own slot, and of all slots of a unit.
uint64_t slot_bytes(const ModelParam& param, uint64_t element_bytes);
uint64_t slots_bytes(const ModelUnit& unit, const StepShape& shape, uint64_t element_bytes);
// Returns which units are kept: none without `keep`, and otherwise each that still fits in the
// budget, in the order of the units. The unit that stays is never one of them.
std::vector<bool> kept_units(const Model& model, bool flat, uint64_t wire_bytes, bool keep,
                             uint64_t budget_bytes);

uint64_t minimum_bytes(const Model& model, const std::vector<StepEvent>& events,
                       const StepShape& shape);
// Returns the bytes of slots that must be there after each event, of all ranks together. The live
// bound of a step is the largest of them.
std::vector<uint64_t> live_bytes(const Model& model, const std::vector<StepEvent>& events,
                                 const StepShape& shape);
// Returns a lower bound of every plan of one rank's slots. Shared slots lie apart from the rank's
// own slots, so the bound is the sum of the peaks of both.
uint64_t plan_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          StepShape shape);
// Returns (prefetch + 3) times the bytes of the largest unit. A rank needs that many bytes for its
// own slots if the parameters and the gradients of a unit are always there as a whole.
uint64_t classic_bytes(const Model& model, const StepShape& shape, int prefetch);
uint64_t live_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          const StepShape& shape);

}  // namespace fsccl::perf
