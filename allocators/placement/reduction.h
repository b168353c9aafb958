// A smaller problem whose packings are packings of the larger one: several items of it lie in one
// of the smaller. A step of a model asks for much that is alike, so what is small is often solved
// exactly.
#pragma once
#include <optional>

#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Reduction {
  PackingProblem problem;
  std::vector<uint32_t> item_of;  // item of the larger problem -> of the smaller one
  std::vector<uint64_t> inner;    // and where it lies in that

  Packing expand(const Packing& small) const;
};

// Items that meet the same others, and each other, side by side as one: the parameters of a unit
// that are fetched one by one. Nothing when items without bytes would lie in one place.
std::optional<Reduction> fuse_twins(const PackingProblem& whole);

// Finds the periods of a step. Layer after layer asks for the same sizes, so the slots of every
// n-th layer share one place. The result is a packing of all layers, tiled.
class Periods {
 public:
  // `whole` with an item for each request, as made of them or fused.
  Periods(const std::vector<SlotRequest>& requests, int64_t events, const PackingProblem& whole);
  static constexpr int kLargestReach = 8;
  // Items whose neighbourhood in the step is alike for 2^`reach` events are numbered in order, and
  // those with equal numbers modulo `period` become one. Nothing when two of them meet, nothing
  // becomes smaller, or more than `most_items` are left.
  std::optional<Reduction> reduce(int reach, uint32_t period, size_t most_items) const;

 private:
  const PackingProblem& whole_;
  // by reach, per item: equal where the neighbourhoods are alike
  std::vector<std::vector<uint64_t>> likeness_;
};

}  // namespace fsccl
