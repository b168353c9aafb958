// Finds which slots may not share bytes: makes the items of a packing problem from requests, and
// the graph of their conflicts. Requests with one key are one item. The functions are pure. The
// graph of a long step may have more conflicts than there is memory for; then it is not made, and
// the step is packed without it.
#pragma once
#include <cstdint>
#include <vector>

#include "allocators/placement/planner.h"

namespace fsccl {

struct PackingItem {
  uint64_t bytes = 0;
  uint64_t pinned = SlotRequest::kAnywhere;
  int64_t start = 0;            // first event of its first occurrence
  int64_t duration = 0;         // number of events, over all occurrences
  std::vector<uint32_t> meets;  // items that must not overlap it, ascending
};

// Makes the list of neighbours of each item ascending and free of repetitions. Before, the lists
// may have any order and repetitions, but if one item has another in its list, the other must have
// the first.
void make_sets_of_neighbours(std::vector<PackingItem>& items);

struct PackingProblem {
  std::vector<PackingItem> items;
  std::vector<uint32_t> item_of;  // request -> item
  std::vector<std::vector<uint32_t>>
      // The items that are live at the heaviest peaks of the step, a set for each peak. One set may
      // contain or equal another, because an item may occur several times. The items of a set are
      // ascending.
      crowds;
  bool conflicts_known = true;  // if false, `meets` is empty everywhere
  uint64_t live_bound = 0;      // most bytes live at once
  uint64_t alignment = 1;       // alignment of offsets and of sizes
  // The size at which a search for a better packing stops: the largest of the known lower bounds
  // and of the ends of pinned items.
  uint64_t target = 0;
};

PackingProblem make_packing_problem(const std::vector<SlotRequest>& requests, int64_t events,
                                    uint64_t alignment, int64_t most_compared = kMostCompared);

struct Packing {
  std::vector<uint64_t> offset;  // per item
  uint64_t bytes = UINT64_MAX;
};
// Packs without the graph of conflicts, in O(n log n), by best fit in the order of the step. An
// item keeps its place from its first occurrence to its last one, and an item that may meet items
// of the next step keeps it always.
Packing pack_in_order(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                      const PackingProblem& problem);

}  // namespace fsccl
