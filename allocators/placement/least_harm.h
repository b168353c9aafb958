// Where a request that the plan does not have, or not now, does least harm: among the gaps, the
// place that is in the way of the fewest bytes that the plan is about to hand out.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "allocators/placement/region.h"

namespace fsccl {

struct ExpectedSlot {
  uint64_t begin = 0, end = 0;
  uint64_t weight = 1;  // per byte
};

// Where slots of this size are at other times, first: what is one of many alike then leaves no odd
// pieces. Then gaps below `limit`; `extent` bytes exist, and what lies above costs a byte a byte.
// Offsets are multiples of what all sizes are multiples of. Nothing when no gap is large enough.
std::optional<uint64_t> least_harm(const Region& region, uint64_t bytes, uint64_t extent,
                                   uint64_t limit, const std::vector<uint64_t>& homes,
                                   const std::vector<ExpectedSlot>& expected);

}  // namespace fsccl
