#include "pool/device/free_ranges.h"

#include <algorithm>

#include "base/round_up.h"

namespace fsccl {

void FreeRanges::insert(uint64_t begin, const Range& range) {
  ranges_.emplace(begin, range);
  by_size_.emplace(range.end - begin, begin);
}

FreeRanges::ByBegin::iterator FreeRanges::erase(ByBegin::iterator range) {
  by_size_.erase({range->second.end - range->first, range->first});
  return ranges_.erase(range);
}

void FreeRanges::add(uint64_t begin, uint64_t end, uint64_t sequence) {
  if (begin >= end) return;
  auto after = ranges_.lower_bound(begin);
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->second.end == begin) {
      begin = before->first;
      sequence = std::max(sequence, before->second.sequence);
      after = erase(before);
    }
  }
  if (after != ranges_.end() && after->first == end) {
    end = after->second.end;
    sequence = std::max(sequence, after->second.sequence);
    erase(after);
  }
  insert(begin, {end, sequence});
}

std::optional<uint64_t> FreeRanges::find(uint64_t bytes, uint64_t alignment,
                                         uint64_t* range_bytes) const {
  for (auto range = by_size_.lower_bound({bytes, 0}); range != by_size_.end(); ++range) {
    const auto [size, begin] = *range;
    const uint64_t at = round_up(begin, alignment);
    if (at - begin > size - bytes) continue;  // too small once it is aligned
    *range_bytes = size;
    return at;
  }
  return std::nullopt;
}

uint64_t FreeRanges::remove(uint64_t begin, uint64_t end) {
  uint64_t sequence = 0;
  auto range = ranges_.upper_bound(begin);
  if (range != ranges_.begin() && std::prev(range)->second.end > begin) --range;
  while (range != ranges_.end() && range->first < end) {
    const uint64_t from = range->first;
    const Range was = range->second;
    range = erase(range);
    sequence = std::max(sequence, was.sequence);
    if (from < begin) insert(from, {begin, was.sequence});
    if (was.end > end) insert(end, was);
  }
  return sequence;
}

}  // namespace fsccl
