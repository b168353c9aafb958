// Finds a place for a request that the plan does not have, or whose planned place is taken: the
// free place that overlaps the fewest bytes that the plan is about to hand out.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "allocators/placement/region.h"

namespace fsccl {

struct ExpectedSlot {
  uint64_t begin = 0, end = 0;
  uint64_t weight = 1;  // harm of each byte
};

// Returns the offset below `limit` with the least harm. Harm is the weighted bytes of the expected
// slots that the place would overlap, plus a byte for each byte above `extent`, because that does
// not exist yet. Among places of equal harm, one of `homes` is preferred, which are offsets at
// which the plan has slots of this size, so that many slots of one size leave no odd pieces; then
// the smallest gap, and then the lowest offset. If all sizes are multiples of a number, so is the
// offset. Returns nothing if no gap is large enough.
std::optional<uint64_t> least_harm(const Region& region, uint64_t bytes, uint64_t extent,
                                   uint64_t limit, const std::vector<uint64_t>& homes,
                                   const std::vector<ExpectedSlot>& expected);

}  // namespace fsccl
