// Plans a step by trying these methods in order, until a packing is within one part in kNearBound
// of the bound: best fit on all slots; best fit on slots fused to units; tilings of repeating
// units, solved exactly where that is quick; exact search on the units; eviction on all slots;
// exact search.
#include "allocators/placement/planner.h"

#include <algorithm>
#include <optional>

#include "allocators/placement/best_fit.h"
#include "allocators/placement/clique_bound.h"
#include "allocators/placement/eviction.h"
#include "allocators/placement/reduction.h"
#include "allocators/placement/tight_search.h"

namespace fsccl {
namespace {

// The efforts of the methods, in neighbours looked at. 10 million of them take about 50 ms.
constexpr int64_t kOrdersEffort = 400'000, kTiledOrdersEffort = 50'000, kTiledSearchEffort = 50'000,
                  kSearchEffort = 750'000, kLastSearchEffort = 250'000, kEvictionEffort = 6'000'000,
                  kEvictionEffortOfItem = 3'000, kAllTilingsEffort = 2'000'000,
                  kReduceEffort = int64_t{1} << 23;
constexpr size_t kItemEffort = 64;  // effort of an item by itself in a reduction, in neighbours
constexpr uint32_t kLongestPeriod = 8;
// Larger problems, and problems that a tiling hardly reduces, are not searched exactly.
constexpr size_t kMostTiledItems = 150, kMostSearchedItems = 500;
constexpr uint64_t kNearBound = 1024;  // good enough: one part in so many above the bound

class Planner {
 public:
  Planner(const std::vector<SlotRequest>& requests, int64_t events, const PackingProblem& problem)
      : requests_(requests),
        events_(events),
        problem_(problem),
        enough_(problem.target + problem.target / kNearBound) {}

  Packing run() {
    fit(problem_, {}, kOrdersEffort);
    if (done()) return best_;
    std::optional<Reduction> fused;
    if (effort_of(problem_) <= kReduceEffort) fused = fuse_twins(problem_);
    const bool smaller = !fused || fused->problem.items.size() < problem_.items.size();
    if (fused) {
      if (smaller) fit(fused->problem, {&*fused}, kOrdersEffort);
      tile(*fused);
      search(fused->problem, {&*fused}, kSearchEffort);
    }
    if (!done()) {
      int64_t effort = std::min(
          kEvictionEffort, kEvictionEffortOfItem * static_cast<int64_t>(problem_.items.size()));
      Eviction(problem_).improve(best_, enough_, effort);
    }
    if (smaller) search(problem_, {}, kLastSearchEffort);
    return best_;
  }

 private:
  using Reductions = std::vector<const Reduction*>;  // the innermost first

  bool done() const { return best_.bytes <= enough_; }

  void keep(Packing packing, const Reductions& reductions) {
    if (packing.bytes >= best_.bytes) return;
    for (const Reduction* reduction : reductions) packing = reduction->expand(packing);
    best_ = std::move(packing);
  }

  void fit(const PackingProblem& problem, const Reductions& reductions, int64_t effort) {
    if (done()) return;
    Packing packing;
    BestFit(problem).try_orders(packing, effort);
    keep(std::move(packing), reductions);
  }

  void search(const PackingProblem& problem, const Reductions& reductions, int64_t effort) {
    const auto pinned = [](const PackingItem& item) {
      return item.pinned != SlotRequest::kAnywhere;
    };
    if (done() || problem.items.size() > kMostSearchedItems ||
        std::any_of(problem.items.begin(), problem.items.end(), pinned))
      return;
    const std::vector<Clique> cliques = find_cliques(problem);
    for (const SearchOrder order : kSearchOrders) {
      Packing packing;
      int64_t left = effort;
      const Search result = pack_within(problem, cliques, enough_, order, packing, left);
      if (result == Search::kGaveUp) continue;
      if (result == Search::kFound) keep(std::move(packing), reductions);
      return;
    }
  }

  // Tries the smallest problems first: they are solved, or found to have no solution, at once.
  void tile(const Reduction& fused) {
    if (done()) return;
    const Periods periods(requests_, events_, fused.problem);
    int64_t effort = kAllTilingsEffort, reduce_effort = kReduceEffort;
    const int64_t neighbours = effort_of(fused.problem);
    for (int reach = 1; reach <= Periods::kLargestReach; ++reach) {
      for (uint32_t period = 1; period <= kLongestPeriod; ++period) {
        if (done() || effort <= 0 || reduce_effort <= 0) return;
        reduce_effort -= neighbours;
        const std::optional<Reduction> tiled = periods.reduce(reach, period, kMostTiledItems);
        effort -= static_cast<int64_t>(fused.problem.items.size());
        if (!tiled) continue;
        effort -= kTiledOrdersEffort;
        fit(tiled->problem, {&*tiled, &fused}, kTiledOrdersEffort);
        search(tiled->problem, {&*tiled, &fused}, kTiledSearchEffort);
      }
    }
  }

  // Returns the effort to reduce the problem once.
  static int64_t effort_of(const PackingProblem& problem) {
    size_t effort = kItemEffort * problem.items.size();
    for (const PackingItem& item : problem.items) effort += item.meets.size();
    for (const std::vector<uint32_t>& crowd : problem.crowds) effort += crowd.size();
    return static_cast<int64_t>(effort);
  }

  const std::vector<SlotRequest>& requests_;
  int64_t events_;
  const PackingProblem& problem_;
  uint64_t enough_;
  Packing best_;
};

}  // namespace

SlotPlan plan_slots(const std::vector<SlotRequest>& requests, int64_t events, uint64_t alignment,
                    int64_t most_compared) {
  SlotPlan plan;
  if (requests.empty()) return plan;
  events = std::max<int64_t>(events, 1);
  PackingProblem problem = make_packing_problem(requests, events, alignment, most_compared);
  const std::vector<Clique> cliques = find_cliques(problem);
  plan.bound = problem.live_bound;
  plan.clique_bound = std::max(plan.bound, cliques.empty() ? 0 : cliques[0].bytes);
  problem.target = std::max(problem.target, plan.clique_bound);
  const Packing packing = problem.conflicts_known
                              ? Planner(requests, events, problem).run()
                              : pack_in_order(requests, events, alignment, problem);
  plan.bytes = packing.bytes;
  for (const uint32_t item : problem.item_of) plan.offset.push_back(packing.offset[item]);
  return plan;
}

}  // namespace fsccl
