#include "allocators/placement/clique_bound.h"

#include <algorithm>

namespace fsccl {
namespace {

// The most items for which cliques are widened. Their sets of neighbours take 32 MiB.
constexpr size_t kMostWidened = 16384;
constexpr int64_t kWidenEffort = int64_t{1} << 26;  // words and items looked at; about 50 ms

class Sets {  // sets of neighbours, one bit each
 public:
  explicit Sets(const PackingProblem& problem)
      : items_(problem.items), words_((items_.size() + 63) / 64), bits_(items_.size() * words_) {
    for (size_t i = 0; i < items_.size(); ++i)
      for (const uint32_t other : items_[i].meets)
        bits_[i * words_ + other / 64] |= uint64_t{1} << other % 64;
  }

  void widen(std::vector<uint32_t>& clique, int64_t& effort) const {
    std::vector<uint64_t> common(words_, ~uint64_t{0});
    for (const uint32_t item : clique) restrict_to(common, item, effort);
    while (effort > 0) {
      const uint32_t next = heaviest(common, effort);
      if (next == UINT32_MAX) break;
      clique.push_back(next);
      restrict_to(common, next, effort);
    }
  }

 private:
  void restrict_to(std::vector<uint64_t>& set, uint32_t item, int64_t& effort) const {
    for (size_t w = 0; w < words_; ++w) set[w] &= bits_[item * words_ + w];
    effort -= static_cast<int64_t>(words_);
  }

  uint32_t heaviest(const std::vector<uint64_t>& set, int64_t& effort) const {
    uint32_t result = UINT32_MAX;
    for (size_t w = 0; w < words_; ++w) {
      for (uint64_t bits = set[w]; bits != 0; bits &= bits - 1) {
        const auto i = static_cast<uint32_t>(w * 64) + static_cast<uint32_t>(__builtin_ctzll(bits));
        if (i < items_.size() && (result == UINT32_MAX || items_[i].bytes > items_[result].bytes))
          result = i;
        --effort;
      }
    }
    effort -= static_cast<int64_t>(words_);
    return result;
  }

  const std::vector<PackingItem>& items_;
  size_t words_;
  std::vector<uint64_t> bits_;
};

bool heavier(const Clique& a, const Clique& b) {
  return a.bytes != b.bytes ? a.bytes > b.bytes : a.items < b.items;
}

uint64_t bytes_of(const std::vector<uint32_t>& set, const std::vector<PackingItem>& items) {
  uint64_t bytes = 0;
  for (const uint32_t item : set) bytes += items[item].bytes;
  return bytes;
}

}  // namespace

std::vector<Clique> find_cliques(const PackingProblem& problem) {
  std::vector<Clique> found;
  for (const std::vector<uint32_t>& crowd : problem.crowds)
    found.push_back({.items = crowd, .bytes = bytes_of(crowd, problem.items)});
  std::sort(found.begin(), found.end(), heavier);  // the effort is spent on the heaviest
  if (problem.conflicts_known && problem.items.size() <= kMostWidened) {
    const Sets neighbours(problem);
    int64_t effort = kWidenEffort;
    for (Clique& clique : found) {
      if (effort <= 0) break;
      neighbours.widen(clique.items, effort);
      std::sort(clique.items.begin(), clique.items.end());
      clique.bytes = bytes_of(clique.items, problem.items);
    }
    std::sort(found.begin(), found.end(), heavier);
  }
  found.erase(std::unique(found.begin(), found.end(),
                          [](const Clique& a, const Clique& b) { return a.items == b.items; }),
              found.end());
  return found;
}

}  // namespace fsccl
