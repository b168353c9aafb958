// A packing that is made smaller by eviction. The limit is set below what it takes, and all that
// sticks out is put in again, the largest items first, each in the tightest gap among those that it
// meets. Where there is none, it takes the place whose holders were the least often without one,
// and evicts them (after Nagata and Braysy, 2009, who empty vehicles so). When all have a place,
// the limit is lowered again. So what is good in a packing stays, where best fit begins anew for
// each order.
#pragma once
#include <cstdint>
#include <random>
#include <vector>

#include "allocators/placement/slot_conflicts.h"

namespace fsccl {

class Eviction {
 public:
  explicit Eviction(const PackingProblem& problem);
  // Makes `packing` smaller until it has at most `enough` bytes, or the effort (neighbours looked
  // at) is spent; what is left of that is in `effort`.
  void improve(Packing& packing, uint64_t enough, int64_t& effort);

 private:
  struct Busy {
    uint64_t from, to;
    uint32_t item;
  };
  // From the offsets `start`; changes `packing` when there is one.
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
  std::vector<uint64_t> missed_;   // per item: how often it had no gap, and one more
  std::vector<uint32_t> waiting_;  // items without a place: a heap, the largest first
  std::vector<Busy> busy_;         // places that the placed item meets, ascending
  std::minstd_rand random_;        // the same on every rank
};

}  // namespace fsccl
