#include "allocators/placement/least_harm.h"

#include <algorithm>
#include <tuple>

namespace fsccl {
namespace {

struct Gap {
  uint64_t begin, end;
};

std::vector<Gap> gaps_of(const Region& region, uint64_t bytes, uint64_t limit) {
  std::vector<Gap> gaps;
  uint64_t end = 0;
  const auto add = [&](uint64_t from, uint64_t to) {
    if (to > from && to - from >= bytes) gaps.push_back({from, to});
  };
  for (const auto& [offset, block] : region.used()) {
    add(end, std::min(offset, limit));
    end = offset + block;
  }
  add(end, limit);
  return gaps;
}

}  // namespace

std::optional<uint64_t> least_harm(const Region& region, uint64_t bytes, uint64_t extent,
                                   uint64_t limit, const std::vector<uint64_t>& homes,
                                   const std::vector<ExpectedSlot>& expected) {
  // (harm, whether it is no home, size of the gap, offset); the least rank is the best.
  using Rank = std::tuple<uint64_t, bool, uint64_t, uint64_t>;
  std::optional<Rank> best;
  const std::vector<Gap> gaps = gaps_of(region, bytes, limit);
  const auto consider = [&](const Gap& gap, uint64_t at, bool home) {
    if (at < gap.begin || at > gap.end - bytes) return;
    uint64_t harm = at + bytes > extent ? at + bytes - extent : 0;
    for (const ExpectedSlot& slot : expected)
      if (slot.begin < at + bytes && at < slot.end) harm += (slot.end - slot.begin) * slot.weight;
    const Rank rank(harm, !home, gap.end - gap.begin, at);
    if (!best || rank < *best) best = rank;
  };
  for (const Gap& gap : gaps) {
    for (const uint64_t home : homes) consider(gap, home, true);
    consider(gap, gap.begin, false);
    consider(gap, gap.end - bytes, false);
    for (const ExpectedSlot& slot : expected) {
      consider(gap, slot.end, false);
      if (slot.begin >= bytes) consider(gap, slot.begin - bytes, false);
    }
  }
  return best ? std::optional(std::get<3>(*best)) : std::nullopt;
}

}  // namespace fsccl
