#include "allocators/placement/tight_search.h"

#include <algorithm>
#include <numeric>

namespace fsccl {
namespace {

class Tree {
 public:
  Tree(const PackingProblem& problem, const std::vector<Clique>& cliques, uint64_t limit,
       SearchOrder order, int64_t& effort)
      : items_(problem.items), cliques_(cliques), limit_(limit), effort_(effort) {
    const size_t count = items_.size();
    offset_.assign(count, SlotRequest::kAnywhere);
    lower_.assign(count, 0);
    cliques_of_.resize(count);
    for (uint32_t c = 0; c < cliques.size(); ++c) {
      remaining_.push_back(cliques[c].bytes);
      for (const uint32_t i : cliques[c].items) cliques_of_[i].push_back(c);
    }
    by_rank_.resize(count);
    std::iota(by_rank_.begin(), by_rank_.end(), 0U);
    const std::vector<double> urgency = urgencies(order);
    std::stable_sort(by_rank_.begin(), by_rank_.end(),
                     [&](uint32_t a, uint32_t b) { return urgency[a] > urgency[b]; });
    rank_.resize(count);
    for (uint32_t r = 0; r < count; ++r) rank_[by_rank_[r]] = r;
  }

  Search run(Packing& found) {
    const Search result = descend(0, 0, 0);
    if (result == Search::kFound) {
      found.offset = offset_;
      found.bytes = 0;
      for (size_t i = 0; i < items_.size(); ++i)
        found.bytes = std::max(found.bytes, offset_[i] + items_[i].bytes);
    }
    return result;
  }

 private:
  struct Raised {
    uint32_t item;
    uint64_t from;
  };

  // Returns the urgency of each item. The most urgent of the items that could lie at the same
  // offset is tried first.
  std::vector<double> urgencies(SearchOrder order) const {
    std::vector<double> urgency(items_.size(), 0);
    for (uint32_t i = 0; i < items_.size(); ++i) {
      double pressure = 0;  // bytes of the heaviest clique that has the item
      for (const uint32_t c : cliques_of_[i])
        pressure = std::max(pressure, static_cast<double>(cliques_[c].bytes));
      const auto bytes = static_cast<double>(items_[i].bytes);
      const double urgencies[] = {pressure * 0x1p20 + bytes, bytes,
                                  static_cast<double>(items_[i].duration),
                                  -static_cast<double>(items_[i].start)};
      urgency[i] = urgencies[static_cast<size_t>(order)];
    }
    return urgency;
  }

  // Places the remaining items. Every placed item lies at `floor` or below, and those at `floor`
  // have ranks below `rank`.
  Search descend(size_t placed, uint64_t floor, uint32_t rank) {
    if (placed == items_.size()) return Search::kFound;
    effort_ -= static_cast<int64_t>(items_.size());
    if (effort_ <= 0) return Search::kGaveUp;
    // An item at `ceiling` or above would leave room for an unplaced item below it. Such a packing
    // need not be searched, because the same packing, pushed down, is found elsewhere.
    uint64_t ceiling = UINT64_MAX;
    std::vector<uint32_t> candidates;
    for (const uint32_t i : by_rank_) {
      if (offset_[i] != SlotRequest::kAnywhere) continue;
      ceiling = std::min(ceiling, lower_[i] + items_[i].bytes);
      if (lower_[i] > floor || (lower_[i] == floor && rank_[i] >= rank)) candidates.push_back(i);
    }
    std::erase_if(candidates, [&](uint32_t i) { return lower_[i] >= ceiling; });
    std::stable_sort(candidates.begin(), candidates.end(),
                     [&](uint32_t a, uint32_t b) { return lower_[a] < lower_[b]; });
    for (const uint32_t i : candidates) {
      const uint64_t at = lower_[i];
      const size_t mark = raised_.size();
      const bool alive = place(i, at);
      const Search result = alive ? descend(placed + 1, at, rank_[i] + 1) : Search::kNone;
      if (result != Search::kNone) return result;
      remove(i, mark);
    }
    return Search::kNone;
  }

  bool place(uint32_t i, uint64_t at) {
    offset_[i] = at;
    for (const uint32_t c : cliques_of_[i]) remaining_[c] -= items_[i].bytes;
    bool alive = true;
    const uint64_t end = at + items_[i].bytes;
    for (const uint32_t other : items_[i].meets) {
      if (offset_[other] != SlotRequest::kAnywhere || lower_[other] >= end) continue;
      raised_.push_back({other, lower_[other]});
      lower_[other] = end;
      alive &= end + items_[other].bytes <= limit_;
    }
    effort_ -= static_cast<int64_t>(items_[i].meets.size() + cliques_.size());
    for (size_t c = 0; c < cliques_.size() && alive; ++c) {
      if (remaining_[c] == 0) continue;
      uint64_t least = UINT64_MAX;
      for (const uint32_t other : cliques_[c].items)
        if (offset_[other] == SlotRequest::kAnywhere) least = std::min(least, lower_[other]);
      alive = std::max(least, at) + remaining_[c] <= limit_;
    }
    return alive;
  }

  void remove(uint32_t i, size_t mark) {
    offset_[i] = SlotRequest::kAnywhere;
    for (const uint32_t c : cliques_of_[i]) remaining_[c] += items_[i].bytes;
    while (raised_.size() > mark) {
      lower_[raised_.back().item] = raised_.back().from;
      raised_.pop_back();
    }
  }

  const std::vector<PackingItem>& items_;
  const std::vector<Clique>& cliques_;
  uint64_t limit_;
  int64_t& effort_;
  std::vector<uint64_t> offset_, lower_;  // lower_: the top of the placed items that it meets
  std::vector<std::vector<uint32_t>> cliques_of_;
  std::vector<uint64_t> remaining_;  // by clique: the bytes that are not placed
  std::vector<uint32_t> by_rank_, rank_;
  std::vector<Raised> raised_;
};

}  // namespace

Search pack_within(const PackingProblem& problem, const std::vector<Clique>& cliques,
                   uint64_t limit, SearchOrder order, Packing& found, int64_t& effort) {
  return Tree(problem, cliques, limit, order, effort).run(found);
}

}  // namespace fsccl
