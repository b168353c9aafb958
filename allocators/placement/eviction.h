// Makes a packing smaller by eviction. The limit is set below the size of the packing, and each
// item that sticks out is placed again, the largest first: in the tightest gap among the items that
// it meets. If there is no gap, the item takes the place whose holders have least often been
// without a gap, and evicts them (after Nagata and Braysy, 2009, who reduce the number of vehicles
// of a route plan in this way). When all items have a place, the limit is lowered again. In this
// way the good parts of a packing stay, whereas best fit begins anew for each order.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

class Eviction {
 public:
  explicit Eviction(const PackingProblem& problem);
  // Makes `packing` smaller until it has at most `enough` bytes, or the effort is spent, which is
  // counted in neighbours looked at. `effort` becomes what is left of it.
  void improve(Packing& packing, uint64_t enough, int64_t& effort);

 private:
  struct Busy {
    uint64_t from, to;
    uint32_t item;
  };
  // Searches a packing within `limit` from the offsets `start`, and stores it in `packing` if it
  // finds one.
  bool try_within(uint64_t limit, std::vector<uint64_t> start, Packing& packing,
                  int64_t most_effort, int64_t& effort);
  bool pack(uint64_t limit, int64_t& effort);
  bool place(uint32_t item, uint64_t limit, int64_t& effort);
  uint64_t tightest_gap(uint64_t bytes, uint64_t limit);
  uint64_t cheapest_place(uint64_t bytes, uint64_t limit, int64_t& effort);
  void evict(uint32_t item);
  auto smaller() const {
    return [this](uint32_t a, uint32_t b) { return items_[a].bytes < items_[b].bytes; };
  }
  bool evictable(uint32_t item) const { return items_[item].pinned == SlotRequest::kAnywhere; }

  const PackingProblem& problem_;
  const std::vector<PackingItem>& items_;
  std::vector<uint64_t> offset_;
  std::vector<uint64_t> missed_;   // per item: 1 plus how often it had no gap
  std::vector<uint32_t> waiting_;  // items without a place, as a heap with the largest on top
  std::vector<Busy> busy_;         // the placed items that the present one meets, by offset
  std::minstd_rand random_;        // gives the same numbers on every rank
};

}  // namespace fsccl
