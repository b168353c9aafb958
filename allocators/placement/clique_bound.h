// A lower bound of every packing. Items of which no two may overlap lie beside each other, so the
// bytes of the heaviest such set that is found are a bound. The bytes that are live at once are
// such a set. Uses that no edge orders, and occurrences that share an offset, can make a heavier
// one.
#pragma once
#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Clique {
  std::vector<uint32_t> items;  // ascending
  uint64_t bytes = 0;
};
// Returns a clique for each crowd: the crowd, to which the heaviest items that fit are added as
// long as there are any. The heaviest clique comes first, and none comes twice. Crowds of large
// problems are not widened, nor are the lightest of many.
std::vector<Clique> find_cliques(const PackingProblem& problem);

}  // namespace fsccl
