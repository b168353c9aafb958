// The order of events of an FSDP step, and the two bounds that follow from it. Pure functions of
// the model and the options.
//
// Forward: every unit is gathered, used and given back; one, the root, stays. Backward, in reverse
// order: a unit is gathered again (the root still is), its gradients are written, its parameters
// given back, its gradients reduced. With prefetch 1 the next unit's gather is issued before the
// present unit is given back, so that two units are there at once.
//
// By parameter (`make_step_by_parameter`), backward passes a unit's parameters from the last to the
// first: the gradient is written, the parameter given back, and the gradient reduced when the next
// one is there. The root does not stay: its first parameter is the embedding, which begins the
// forward pass; it is gathered again for its others (norm and head), which end the forward pass and
// begin the backward one. An embedding that is not the head, too (that is, when there is a head of
// its size), is given back at once then. Its gradient comes at the end.
//
// Bytes minimum (the ranks of one host, read + written by all of them, in one step). E: a unit's
// elements, n: ranks, M, W, R, G: bytes per element of shards (4), wire, gradients and sharded
// gradients (4):
//   gather into a shared slot     M E read once, W E written once per host
//   gather into private slots     M E + (n-1) W E read, n W E written
//   gather of a kept unit         0 until its shards change
//   reduction                     n R E read (each rank's gradient once), G E written
// so the sum is taken over one forward gather of every unit, one backward gather of every unit but
// the root and the kept ones, and one reduction of every unit.
//
// Live bound: the most bytes of slots that are live at once in this order, over all ranks: a shared
// slot counts once per host, a private one and a gradient slot once per rank; a kept unit's slot is
// live from its first gather on. No placement can need less.
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
  size_t param = 0;  // parameter, for the last three kinds
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

// Bytes of a unit's slot with elements of `element_bytes`: per_param aligns each parameter to 64
// bytes.
uint64_t slot_bytes(const ModelUnit& unit, bool flat, uint64_t element_bytes);
// Returns the bytes of a parameter's own slot, and of all slots of a unit.
uint64_t slot_bytes(const ModelParam& param, uint64_t element_bytes);
uint64_t slots_bytes(const ModelUnit& unit, const StepShape& shape, uint64_t element_bytes);
// Which units are kept: none, all but the one that stays, or as many as fit the budget, in order.
std::vector<bool> kept_units(const Model& model, bool flat, uint64_t wire_bytes, bool keep,
                             uint64_t budget_bytes);

uint64_t minimum_bytes(const Model& model, const std::vector<StepEvent>& events,
                       const StepShape& shape);
// Bytes of slots that must be there after each event, of all ranks together; a step's live bound is
// the most of them.
std::vector<uint64_t> live_bytes(const Model& model, const std::vector<StepEvent>& events,
                                 const StepShape& shape);
// Returns a lower bound of every plan of one rank's slots: shared slots and a rank's own lie apart,
// and each kind has a peak of its own.
uint64_t plan_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          StepShape shape);
// (prefetch + 3) times the largest unit's parameters: what a step takes in which units live and die
// whole, for a rank's own slots.
uint64_t classic_bytes(const Model& model, const StepShape& shape, int prefetch);
uint64_t live_bound_bytes(const Model& model, const std::vector<StepEvent>& events,
                          const StepShape& shape);

}  // namespace fsccl::perf
