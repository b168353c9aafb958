// Searches a packing within a limit. The search goes depth first over the packings in which every
// item lies at offset 0 or directly above an item that it conflicts with (every packing can be
// pushed down to such a one), and places the items in the order of their offsets (after MiniMalloc,
// Moffitt 2023). It gives up when the effort is spent; otherwise its answer is exact. It is for
// small problems.
#pragma once
#include <optional>

#include "allocators/placement/clique_bound.h"

namespace fsccl {

enum class Search : uint8_t { kFound, kNone, kGaveUp };
// Says which of the items that could come next is tried first. No order is good for all problems,
// and a wrong first choice costs a search its effort.
enum class SearchOrder : uint8_t { kCrowded, kLargest, kLongest, kEarliest };
inline constexpr SearchOrder kSearchOrders[] = {SearchOrder::kCrowded, SearchOrder::kLargest,
                                                SearchOrder::kLongest, SearchOrder::kEarliest};
// `cliques` are cliques of the problem; the more there are, the earlier a dead end is noticed. No
// item may be pinned.
Search pack_within(const PackingProblem& problem, const std::vector<Clique>& cliques,
                   uint64_t limit, SearchOrder order, Packing& found, int64_t& effort);

}  // namespace fsccl
