#include "layout/ragged.h"

#include <algorithm>

namespace fsccl {
namespace {

class Planner {
 public:
  Planner(const std::vector<BlockGrid>& grids, uint64_t ranks) : grids_(grids), load_(ranks) {
    for (size_t i = 0; i < grids.size(); ++i)
      if (elements(i) > 0) order_.push_back(i);
    std::stable_sort(order_.begin(), order_.end(),
                     [&](size_t a, size_t b) { return grids_[a].block() > grids_[b].block(); });
    plan_.params.resize(grids.size());
  }

  RaggedPlan plan() {
    if (order_.empty()) return std::move(plan_);
    const uint64_t ranks = load_.size();
    uint64_t total = 0;
    for (const size_t i : order_) total += elements(i);
    const uint64_t even = total / ranks + (total % ranks != 0);
    uint64_t below = std::max(even, block_bound(grids_, ranks));
    uint64_t level = below;
    if (!deal(level)) {
      level = even + grids_[order_.front()].block();
      while (level - below > 1) {
        const uint64_t middle = below + (level - below) / 2;
        (deal(middle) ? level : below) = middle;
      }
      deal(level);
    }
    plan_.largest = *std::max_element(load_.begin(), load_.end());
    return std::move(plan_);
  }

 private:
  uint64_t elements(size_t i) const {
    return grids_[i].matrices * grids_[i].rows * grids_[i].columns;
  }

  // Fills plan_ with shards of at most `level` elements. Returns false if they do not hold all
  // blocks.
  bool deal(uint64_t level) {
    std::fill(load_.begin(), load_.end(), 0);
    plan_.cuts.clear();
    size_t rank = 0;
    for (size_t k = 0; k < order_.size(); ++k) {
      // a new stream
      if (k == 0 || grids_[order_[k]].block() != grids_[order_[k - 1]].block()) rank = 0;
      if (!deal_parameter(order_[k], level, rank)) return false;
    }
    return true;
  }

  // Gives the blocks of parameter i to `rank` and the ranks after it. Sets `rank` to the one that
  // took the last block.
  bool deal_parameter(size_t i, uint64_t level, size_t& rank) {
    const uint64_t end = elements(i);
    RaggedPlan::Param& param = plan_.params[i];
    param.first_cut = plan_.cuts.size();
    param.ranks = 0;
    plan_.cuts.push_back(0);
    for (uint64_t at = 0; at < end; ++rank) {
      if (rank == load_.size()) return false;
      const uint64_t room = level - load_[rank];
      const uint64_t next = room >= end - at ? end : grids_[i].boundary_before(at + room);
      if (next == at && param.ranks == 0) continue;  // full before it took anything
      if (param.ranks == 0) param.first_rank = static_cast<uint32_t>(rank);
      load_[rank] += next - at;
      plan_.cuts.push_back(next);
      ++param.ranks;
      at = next;
      if (at == end) break;
    }
    return true;
  }

  const std::vector<BlockGrid>& grids_;
  std::vector<size_t> order_;   // parameters with elements, from large blocks to small ones
  std::vector<uint64_t> load_;  // elements each rank holds
  RaggedPlan plan_;
};

}  // namespace

RaggedPlan plan_ragged(const std::vector<BlockGrid>& grids, int ranks) {
  return Planner(grids, static_cast<uint64_t>(ranks)).plan();
}

}  // namespace fsccl
