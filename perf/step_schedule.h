// The order of events of an FSDP step, and the two bounds that follow from it. Pure functions of the model and the options.
//
// Forward: every unit is gathered, used and given back; the first unit is the root and stays. Backward, in reverse order: a unit is
// gathered again (the root still is), its gradients are written, its parameters given back, its gradients reduced. With prefetch 1
// the next unit's gather is issued before the present unit is given back, so that two units are there at once.
//
// Bytes minimum (the ranks of one host, read + written by all of them, in one step). E: a unit's elements, n: ranks, M, W, R, G:
// bytes per element of shards (4), wire, gradients and sharded gradients (4):
//   gather into a shared slot     M E read once, W E written once per host
//   gather into private slots     M E + (n-1) W E read, n W E written
//   gather of a kept unit         0 until its shards change
//   reduction                     n R E read (each rank's gradient once), G E written
// so the sum is taken over one forward gather of every unit, one backward gather of every unit but the root and the kept ones, and
// one reduction of every unit.
//
// Live bound: the most bytes of slots that are live at once in this order, over all ranks: a shared slot counts once per host, a
// private one and a gradient slot once per rank; a kept unit's slot is live from its first gather on. No placement can need less.
#pragma once
#include <cstdint>
#include <vector>

#include "model.h"

namespace fsccl::perf {

enum class EventKind { kGather, kWait, kGradients, kReshard, kReduce };
struct StepEvent {
  EventKind kind;
  size_t unit;
  bool backward;
};
std::vector<StepEvent> make_step(size_t units, int prefetch);

struct StepShape {
  uint64_t wire_bytes = 2;      // per element
  uint64_t gradient_bytes = 2;  // per element
  bool flat = false;
  bool shared = true;
  bool gradient_slots = true;
  int ranks = 1;
  int hosts = 1;
  std::vector<bool> kept;  // per unit
};

// Bytes of a unit's slot with elements of `element_bytes`: per_param aligns each parameter to 64 bytes.
uint64_t slot_bytes(const ModelUnit& unit, bool flat, uint64_t element_bytes);
// Which units are kept: none, all but the root, or as many as fit the budget, in order.
std::vector<bool> kept_units(const Model& model, bool flat, uint64_t wire_bytes, bool keep, uint64_t budget_bytes);

uint64_t minimum_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape);
// Bytes of slots that must be there after each event, of all ranks together; a step's live bound is the most of them.
std::vector<uint64_t> live_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape);
uint64_t live_bound_bytes(const Model& model, const std::vector<StepEvent>& events, const StepShape& shape);

}  // namespace fsccl::perf
