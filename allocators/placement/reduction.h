// A reduction makes a packing problem smaller. One item of the reduced problem holds several items
// of the original one, so each packing of the reduced problem gives one of the original. The
// requests of a model's step are often alike, so the reduced problem may be small enough to be
// solved exactly.
#pragma once
#include <optional>

#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Reduction {
  PackingProblem problem;
  std::vector<uint32_t> item_of;  // item of the original problem -> item that holds it
  std::vector<uint64_t> inner;    // item of the original problem -> its offset in that item

  Packing expand(const Packing& small) const;
};

// Fuses items that conflict with each other and with the same other items, such as the parameters
// of a unit that are fetched one by one: they lie side by side as one item. Returns nothing if two
// of them would lie at one place, which only items without bytes can.
std::optional<Reduction> fuse_twins(const PackingProblem& whole);

// Finds the periods of a step. Layer after layer asks for slots of the same sizes, so the slots of
// every n-th layer can share one place. A packing of n layers then is a packing of all of them (a
// tiling).
class Periods {
 public:
  // `whole` is the packing problem of these requests, in which items may have been fused.
  Periods(const std::vector<SlotRequest>& requests, int64_t events, const PackingProblem& whole);
  static constexpr int kLargestReach = 8;
  // Items are alike if the takes and give-backs around theirs, fewer than 2^`reach` of them away,
  // are. Numbers the items that are alike in the order of the step, and makes one item of those
  // with equal numbers modulo `period`. Returns nothing if two items that would become one meet, if
  // the problem does not become smaller, or if more than `most_items` items are left.
  std::optional<Reduction> reduce(int reach, uint32_t period, size_t most_items) const;

 private:
  const PackingProblem& whole_;
  // By reach and item: a hash that is equal where the neighbourhoods are alike.
  std::vector<std::vector<uint64_t>> likeness_;
};

}  // namespace fsccl
