// A lower bound of every packing: items that must not overlap in pairs lie beside each other, so
// the weight of the heaviest such set that is found is a bound. The bytes that are live at once are
// such a set. Uses that no edge orders, and occurrences that share an offset, can make a heavier
// one.
#pragma once
#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Clique {
  std::vector<uint32_t> items;  // ascending
  uint64_t bytes = 0;
};
// Each crowd, widened as far as it goes by the heaviest items first; heaviest first, without
// repetitions. Crowds of large problems, and the lightest where there are many, are left as they
// are.
std::vector<Clique> find_cliques(const PackingProblem& problem);

}  // namespace fsccl
