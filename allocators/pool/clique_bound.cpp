#include "allocators/pool/clique_bound.h"

#include <algorithm>

namespace fsccl {
namespace {

class Sets {  // of neighbours, a bit each
 public:
  explicit Sets(const PackingProblem& problem) : words_((problem.items.size() + 63) / 64), bits_(problem.items.size() * words_) {
    for (size_t i = 0; i < problem.items.size(); ++i)
      for (const uint32_t other : problem.items[i].meets) bits_[i * words_ + other / 64] |= uint64_t{1} << other % 64;
  }
  void restrict_to(std::vector<uint64_t>& set, uint32_t item) const {
    for (size_t w = 0; w < words_; ++w) set[w] &= bits_[item * words_ + w];
  }
  std::vector<uint64_t> all() const { return std::vector<uint64_t>(words_, ~uint64_t{0}); }

 private:
  size_t words_;
  std::vector<uint64_t> bits_;
};

}  // namespace

std::vector<Clique> find_cliques(const PackingProblem& problem) {
  const std::vector<PackingItem>& items = problem.items;
  const Sets neighbours(problem);
  std::vector<Clique> found;
  for (const std::vector<uint32_t>& crowd : problem.crowds) {
    Clique clique{.items = crowd};
    std::vector<uint64_t> common = neighbours.all();
    for (const uint32_t item : crowd) neighbours.restrict_to(common, item);
    while (true) {
      uint32_t heaviest = UINT32_MAX;
      for (size_t w = 0; w < common.size(); ++w) {
        for (uint64_t bits = common[w]; bits != 0; bits &= bits - 1) {
          const auto i = static_cast<uint32_t>(w * 64) + static_cast<uint32_t>(__builtin_ctzll(bits));
          if (i < items.size() && (heaviest == UINT32_MAX || items[i].bytes > items[heaviest].bytes)) heaviest = i;
        }
      }
      if (heaviest == UINT32_MAX) break;
      clique.items.push_back(heaviest);
      neighbours.restrict_to(common, heaviest);
    }
    std::sort(clique.items.begin(), clique.items.end());
    for (const uint32_t item : clique.items) clique.bytes += items[item].bytes;
    found.push_back(std::move(clique));
  }
  std::sort(found.begin(), found.end(),
            [](const Clique& a, const Clique& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.items < b.items; });
  found.erase(std::unique(found.begin(), found.end(), [](const Clique& a, const Clique& b) { return a.items == b.items; }),
              found.end());
  return found;
}

}  // namespace fsccl
