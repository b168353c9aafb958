// Packs by best fit. Items are placed one by one, each in the best gap between the placed items
// that it must not overlap. Several orders of the items are tried, until the target is reached or
// the effort is spent. The effort is counted in neighbours looked at.
#pragma once
#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

class BestFit {
 public:
  explicit BestFit(const PackingProblem& problem);
  // Stores a packing that is smaller than `best` in `best`. `effort` becomes what is left of it.
  void try_orders(Packing& best, int64_t& effort);

 private:
  enum class Fit : uint8_t { kTightest, kLowest };
  void make_orders();
  Packing pack(const std::vector<uint32_t>& order, Fit fit, int64_t& effort);
  uint64_t place(uint32_t index, const Packing& packing, Fit fit);

  const PackingProblem& problem_;
  const std::vector<PackingItem>& items_;
  std::vector<std::vector<uint32_t>> orders_;
  std::vector<std::pair<uint64_t, uint64_t>> busy_;
};

}  // namespace fsccl
