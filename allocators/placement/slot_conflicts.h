// Finds which slots may not share bytes. It makes the items of a packing from requests, and the
// graph of their conflicts. Requests with one key are one item. Pure. The graph of a long step can
// have more conflicts than there is memory for: then it is not made, and the step is packed without
// it.
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/planner.h"

namespace fsccl {

struct PackingItem {
  uint64_t bytes = 0;
  uint64_t pinned = SlotRequest::kAnywhere;
  int64_t start = 0;            // first event of its first occurrence
  int64_t duration = 0;         // events, over all occurrences
  std::vector<uint32_t> meets;  // items that must not overlap it, ascending
};

// Puts the neighbours of each item into ascending order, each once. They were noted in any order,
// and some several times, but each with the other, so nothing is sorted for that.
void make_sets_of_neighbours(std::vector<PackingItem>& items);

struct PackingProblem {
  std::vector<PackingItem> items;
  std::vector<uint32_t> item_of;  // request -> item
  std::vector<std::vector<uint32_t>>
      // sets of items that are live at once, the heaviest, none within another one; ascending
      crowds;
  bool conflicts_known = true;  // else `meets` is empty everywhere
  uint64_t live_bound = 0;      // most bytes live at once
  uint64_t alignment = 1;       // alignment of offsets and of sizes
  // no packing that is known to exist is smaller: bounds, and the end of what is pinned
  uint64_t target = 0;
};

PackingProblem make_packing_problem(const std::vector<SlotRequest>& requests, int64_t events,
                                    uint64_t alignment, int64_t most_compared = kMostCompared);

struct Packing {
  std::vector<uint64_t> offset;  // per item
  uint64_t bytes = UINT64_MAX;
};
// Packs without the graph, in O(n log n), by best fit in the order of the step. An item has its
// place from its first occurrence to its last; an item that may meet the next step has it always.
Packing pack_in_order(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                      const PackingProblem& problem);

}  // namespace fsccl
