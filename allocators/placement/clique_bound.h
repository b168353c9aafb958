// Lower bounds of all packings of a problem. In every packing, items of which no two may overlap (a
// clique) lie beside each other, so the bytes of the heaviest clique that is found are a bound. The
// items that are live at one moment are a clique. A heavier one may contain items that are live at
// different moments, if no event orders their uses on different streams, or if all occurrences of
// an item must have one offset.
#pragma once
#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

struct Clique {
  std::vector<uint32_t> items;  // ascending
  uint64_t bytes = 0;
};
// Returns a clique for each crowd (PackingProblem::crowds). It is the crowd, widened by the
// heaviest items that conflict with all of it, as long as there are any. The heaviest clique comes
// first, and none comes twice. In large problems no crowd is widened, and if there are many crowds,
// the lightest may not be.
std::vector<Clique> find_cliques(const PackingProblem& problem);

}  // namespace fsccl
