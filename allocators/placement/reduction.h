// A reduction makes a packing problem smaller: one item of the reduced problem holds several items
// of the original one, so each packing of the reduced problem gives one of the original. A step of
// a model asks for much that is alike, so the reduced problem is often small enough to be solved
// exactly.
#pragma once
#include <optional>

#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Reduction {
  PackingProblem problem;
  std::vector<uint32_t> item_of;  // item of the original problem -> item that holds it
  std::vector<uint64_t> inner;    // its offset in that item

  Packing expand(const Packing& small) const;
};

// Fuses items that conflict with each other and with the same other items, such as the parameters
// of a unit that are fetched one by one: they lie side by side as one item. Returns nothing if two
// of them would lie at one place, which only items without bytes can.
std::optional<Reduction> fuse_twins(const PackingProblem& whole);

// Finds the periods of a step. Layer after layer asks for the same sizes, so the slots of every
// n-th layer share one place. The result is a packing of all layers, tiled.
class Periods {
 public:
  // `whole`: the problem of these requests, in which items may have been fused.
  Periods(const std::vector<SlotRequest>& requests, int64_t events, const PackingProblem& whole);
  static constexpr int kLargestReach = 8;
  // Numbers items whose neighbourhood in the step is alike for 2^`reach` events in order, and makes
  // one item of those with equal numbers modulo `period`. Returns nothing if two of them meet, if
  // nothing becomes smaller, or if more than `most_items` are left.
  std::optional<Reduction> reduce(int reach, uint32_t period, size_t most_items) const;

 private:
  const PackingProblem& whole_;
  // by reach, per item: equal where the neighbourhoods are alike
  std::vector<std::vector<uint64_t>> likeness_;
};

}  // namespace fsccl
